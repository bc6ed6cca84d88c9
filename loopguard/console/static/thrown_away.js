// What was thrown away: the last day by model and by hour, and the latest trips.

import { inFull, percent } from "./curve.js";
import { drawDay } from "./day.js";
import { ask, byId, cell, element, fail, renew, row, setText, tile, time, usd } from "./dom.js";

const UNPRICED = {
  no_id: "the upstream had not named it",
  no_key: "no key to ask with",
  no_endpoint: "the upstream tells no prices",
  not_found: "the upstream does not know it",
  unreadable: "its record cannot be read",
  upstream_failed: "the upstream could not be asked",
  key_refused: "the key was refused",
  key_missing: "its key was not seen again",
};
const filter = byId("filter");
let reading = 0;

/** The view is on the screen. */
export async function showThrownAway() {
  reading += 1;
  const number = reading;
  const query = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
  const [read, latest] = await Promise.all([ask("figures"), ask(`replies?${query}`)]);
  if (number !== reading) return; // another filter has been chosen meanwhile
  fail(byId("thrown-fault"), read.ok && latest.ok ? "" : (read.ok ? latest : read).answer.error);
  if (read.ok) showFigures(read.answer);
  if (latest.ok) showTrips(latest.answer, query.size > 0);
}

/** The stream names another trip than before; where it is not the first that it names, say so. */
export async function tellLatestTrip({ aloud }) {
  const { ok, answer } = await ask("replies");
  if (!ok || !answer.length) return;
  const [latest] = answer;
  const model = latest.model || "no model named";
  setText(byId("latest-trip"), `${time(latest.at_s)}, ${model}, ${latest.rule} rule`);
  if (aloud) setText(byId("news"), `${time(latest.at_s)}: a reply of ${model} was cut by the ${latest.rule} rule.`);
}

function sum(lines, key) {
  return lines.reduce((total, line) => total + (line[key] ?? 0), 0);
}

/** What of the money is not known. */
function unsettled({ owed, unpriced }) {
  return [owed && `${inFull(owed)} owed`, unpriced && `${inFull(unpriced)} unpriced`].filter(Boolean).join(", ");
}

function showFigures({ models, hours }) {
  renew(byId("thrown-tiles"), models, () => sumTiles(models));
  renew(byId("charts"), hours, () => {
    const open = [...byId("charts").querySelectorAll("figure")].map((each) => each.querySelector("details")?.open);
    const charts = [
      drawDay("Characters thrown away by the hour", hours, "chars", inFull),
      drawDay("Money thrown away by the hour, as far as it is priced", hours, "cost_usd", usd),
    ];
    charts.forEach((chart, at) => chart.querySelector("details")?.toggleAttribute("open", Boolean(open[at])));
    return charts;
  });
  renew(byId("models"), models, () => models.map(modelRow));
  byId("models-empty").hidden = models.length > 0;
  byId("models-table").hidden = models.length === 0;
  choices(filter.elements.model, models.map((line) => line.model));
}

function sumTiles(models) {
  const cut = sum(models, "loop_aborts");
  const missing = unsettled({ owed: sum(models, "owed"), unpriced: sum(models, "unpriced") });
  const known = models.some((line) => line.saved_usd !== null);
  return [
    tile("Replies cut", inFull(cut), `in ${inFull(sum(models, "looped_exchanges"))} of ${inFull(sum(models, "exchanges"))} exchanges`),
    tile("Characters", inFull(sum(models, "chars")), "of generated output"),
    tile("Money", usd(sum(models, "cost_usd")), missing ? `and ${missing}` : cut ? "all of it priced" : "nothing to be priced"),
    tile("Saved, estimated", known ? usd(sum(models, "saved_usd")) : "not known", known ? "from the cuts to the caps" : "no priced loop of a model with a known cap"),
  ];
}

function modelRow(line) {
  const money = cell("Thrown away", "number", usd(line.cost_usd));
  if (unsettled(line)) money.append(element("span", { class: "quiet block" }, unsettled(line)));
  const saved = cell("Saved, estimated", "number", line.saved_usd === null && line.loop_aborts ? "not known" : usd(line.saved_usd ?? 0));
  if (line.cap_tokens) saved.append(element("span", { class: "quiet block" }, `cap ${inFull(line.cap_tokens)} tokens`));
  return row(
    cell("Model", "head", element("b", { class: "name" }, line.model || "no model named")),
    cell("Exchanges", "number", inFull(line.exchanges)),
    cell("Looped", "number", inFull(line.looped_exchanges)),
    cell("Share", "number", percent(line.exchanges ? line.looped_exchanges / line.exchanges : 0)),
    cell("Replies cut", "number", inFull(line.loop_aborts)),
    cell("Characters", "number", inFull(line.chars)),
    money,
    saved,
  );
}

/** Offer the values that there are; what was chosen stays chosen. */
function choices(select, values) {
  const offered = new Set([...select.options].map((option) => option.value));
  for (const value of values) {
    if (value && !offered.has(value)) select.append(element("option", { value }, value));
    offered.add(value);
  }
}

function price(reply) {
  if (reply.state === "priced") return usd(reply.cost_usd);
  if (reply.state === "owed") return "price owed";
  return `unpriced: ${UNPRICED[reply.unpriced_reason] ?? reply.unpriced_reason}`;
}

function tripItem(reply) {
  const head = element(
    "p",
    { class: "trip-head" },
    element("time", { datetime: new Date(reply.at_s * 1000).toISOString() }, time(reply.at_s)),
    element("b", { class: "name" }, reply.model || "no model named"),
    element("span", {}, `profile ${reply.profile}`),
    element("span", { class: `rule ${reply.rule}` }, `${reply.rule} rule${reply.channel ? ` in ${reply.channel}` : ""}`),
  );
  const made = element("li", { class: "trip-item" }, head);
  if (reply.sentence) made.append(element("p", {}, `${reply.sentence}.`));
  made.append(
    element(
      "p",
      { class: "quiet" },
      `attempt ${reply.attempt}: ${inFull(reply.words)} words, ${inFull(reply.chars)} characters discarded; ${price(reply)}`,
    ),
  );
  if (reply.sample) made.append(element("pre", { tabindex: "0", "aria-label": "A sample of what repeated" }, reply.sample));
  return made;
}

function showTrips(replies, filtered) {
  renew(byId("trips"), replies, () => replies.map(tripItem));
  choices(filter.elements.model, replies.map((reply) => reply.model));
  choices(filter.elements.profile, replies.map((reply) => reply.profile));
  byId("trips-empty").hidden = replies.length > 0 || filtered;
  byId("trips-other").hidden = replies.length > 0 || !filtered;
}

filter.addEventListener("change", showThrownAway);
filter.addEventListener("submit", (event) => event.preventDefault());
