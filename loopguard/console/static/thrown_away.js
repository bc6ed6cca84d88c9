// What was thrown away: the last day by model and by hour, and the latest trips.

import { ask, byId, cell, element, fail, figures, percent, row, setText, svg, tile, time, usd } from "./dom.js";

const REFRESH_MS = 15000; // prices come seconds to minutes after a trip
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
let shown = false;
let timer = null;

/** The view is on the screen: read it now, and again while it is. */
export function showThrownAway() {
  shown = true;
  clearInterval(timer);
  timer = setInterval(() => {
    if (byId("view-thrown-away").hidden) {
      shown = false;
      clearInterval(timer);
    } else if (!document.hidden) refresh();
  }, REFRESH_MS);
  refresh();
}

/** The stream names other trips than before. */
export async function newTrips({ first }) {
  const { ok, answer } = await ask("replies");
  if (!ok || !answer.length) return;
  const [latest] = answer;
  setText(byId("latest-trip"), `${time(latest.at_s)}, ${latest.model || "no model named"}, ${latest.rule} rule`);
  if (!first) setText(byId("news"), `A reply of ${latest.model} was cut by the ${latest.rule} rule.`);
  if (shown) refresh();
}

async function refresh() {
  const query = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
  const [read, latest] = await Promise.all([ask("figures"), ask(`replies?${query}`)]);
  fail(byId("thrown-fault"), read.ok && latest.ok ? "" : (read.ok ? latest : read).answer.error);
  if (read.ok) showFigures(read.answer);
  if (latest.ok) showTrips(latest.answer);
}

function sum(lines, key) {
  return lines.reduce((total, line) => total + (line[key] ?? 0), 0);
}

function showFigures({ models, hours }) {
  const cut = sum(models, "loop_aborts");
  const owed = sum(models, "owed");
  const unpriced = sum(models, "unpriced");
  const known = models.some((line) => line.saved_usd !== null);
  const missing = [owed && `${figures(owed)} owed`, unpriced && `${figures(unpriced)} unpriced`].filter(Boolean);
  byId("thrown-tiles").replaceChildren(
    tile("Replies cut", figures(cut), `in ${figures(sum(models, "looped_exchanges"))} of ${figures(sum(models, "exchanges"))} exchanges`),
    tile("Characters", figures(sum(models, "chars")), "of generated output"),
    tile("Money", usd(sum(models, "cost_usd")), missing.length ? `and ${missing.join(", ")}` : "all of it priced"),
    tile("Saved, estimated", known ? usd(sum(models, "saved_usd")) : "not known", known ? "from the cuts to the caps" : "no priced loop of a model with a known cap"),
  );
  byId("charts").replaceChildren(
    drawDay("Characters thrown away by the hour", hours, "chars", figures),
    drawDay("Money thrown away by the hour, as far as it is priced", hours, "cost_usd", usd),
  );
  byId("models").replaceChildren(...models.map(modelRow));
  byId("models-empty").hidden = models.length > 0;
  choices(filter.elements.model, models.map((line) => line.model));
}

function modelRow(line) {
  const unsettled = [line.owed && `${figures(line.owed)} owed`, line.unpriced && `${figures(line.unpriced)} unpriced`].filter(Boolean);
  const money = cell("Thrown away", "number", usd(line.cost_usd));
  if (unsettled.length) money.append(element("span", { class: "quiet block" }, unsettled.join(", ")));
  const saved = cell("Saved, estimated", "number", line.saved_usd === null && line.loop_aborts ? "not known" : usd(line.saved_usd ?? 0));
  if (line.cap_tokens) saved.append(element("span", { class: "quiet block" }, `cap ${figures(line.cap_tokens)} tokens`));
  return row(
    cell("Model", "head", element("b", { class: "name" }, line.model || "no model named")),
    cell("Exchanges", "number", figures(line.exchanges)),
    cell("Looped", "number", figures(line.looped_exchanges)),
    cell("Share", "number", percent(line.exchanges ? line.looped_exchanges / line.exchanges : 0)),
    cell("Replies cut", "number", figures(line.loop_aborts)),
    cell("Characters", "number", figures(line.chars)),
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

const WIDTH = 600;
const HEIGHT = 100;

function drawDay(title, hours, key, inWords) {
  const top = Math.max(...hours.map((hour) => hour[key]));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const x = (at) => (at / (hours.length - 1)) * WIDTH;
  const y = (value) => HEIGHT - (top ? value / top : 0) * (HEIGHT - 2) - 1;
  for (const share of [0, 0.5, 1]) {
    const at = HEIGHT - share * (HEIGHT - 2) - 1;
    picture.append(svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: at, y2: at }));
  }
  const points = hours.map((hour, at) => `${x(at).toFixed(1)},${y(hour[key]).toFixed(1)}`);
  if (top) {
    picture.append(
      svg("polygon", { class: "area", points: `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` }),
      svg("polyline", { class: "line", points: points.join(" ") }),
    );
  }
  const table = element("table", {}, element("caption", { class: "unseen" }, title));
  table.append(
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Hour from"), element("th", { scope: "col", class: "number" }, "Thrown away"))),
    element("tbody", {}, ...hours.map((hour) => element("tr", {}, element("td", {}, time(hour.at_s)), element("td", { class: "number" }, inWords(hour[key]))))),
  );
  return element(
    "figure",
    { class: "card day" },
    element("figcaption", {}, element("b", {}, title)),
    element("div", { class: "scale", "aria-hidden": "true" }, element("span", {}, top ? inWords(top) : ""), element("span", {}, "0")),
    element("div", { class: "picture" }, picture),
    element("div", { class: "hours", "aria-hidden": "true" }, element("span", {}, "24 h ago"), element("span", {}, "12 h ago"), element("span", {}, "now")),
    top ? element("details", {}, element("summary", {}, "As a table"), element("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": title }, table)) : element("p", { class: "quiet" }, "Nothing in the last day."),
  );
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
      `attempt ${reply.attempt}: ${figures(reply.words)} words, ${figures(reply.chars)} characters discarded; ${price(reply)}`,
    ),
  );
  if (reply.sample) made.append(element("pre", { tabindex: "0", "aria-label": "A sample of what repeated" }, reply.sample));
  return made;
}

function showTrips(replies) {
  byId("trips").replaceChildren(...replies.map(tripItem));
  choices(filter.elements.model, replies.map((reply) => reply.model));
  choices(filter.elements.profile, replies.map((reply) => reply.profile));
  const filtered = [...new FormData(filter)].some(([, value]) => value);
  byId("trips-empty").hidden = replies.length > 0;
  setText(
    byId("trips-empty"),
    filtered
      ? "No trip is like that. Choose all models and all profiles to see the others."
      : "No reply has been discarded. Try a looping text under Configuration to see what would be.",
  );
}

filter.addEventListener("change", refresh);
filter.addEventListener("submit", (event) => event.preventDefault());
