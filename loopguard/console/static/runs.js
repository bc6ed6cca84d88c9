// The figures of one run, as `/runs/NAME` gives them, and how the ledger stands.

import { inFull } from "./curve.js";
import { age, ask, byId, cell, element, fail, row, tile, usd } from "./dom.js";

const MEANINGS = {
  turns: "exchanges",
  errors: "answered with an error",
  loopAborts: "replies cut",
  loopAbortWords: "words discarded",
  loopAbortChars: "characters discarded",
  loopAbortUnpriced: "of them without a price for good",
  loopAbortOwed: "of them without a price yet",
  workCostUsd: "what kept replies cost",
  totalCostUsd: "the same, and what abandoned ones cost",
};
const COLUMNS = ["loopAborts", "loopAbortWords", "loopAbortChars", "loopAbortUnpriced", "loopAbortOwed"];

/** The view is on the screen. */
export async function showRuns() {
  const { ok, answer } = await ask("figures");
  fail(byId("ledger-fault"), ok ? "" : answer.error);
  if (!ok) return;
  const { owed, priced, unpriced, oldest_owed_at_s: oldest } = answer.ledger;
  byId("ledger-tiles").replaceChildren(
    tile("Owed", inFull(owed), "price still to come"),
    tile("Priced", inFull(priced), "price known"),
    tile("Unpriced", inFull(unpriced), "no price for good"),
    tile("Oldest owed", oldest === null ? "none" : age(Date.now() / 1000 - oldest), oldest === null ? "nothing is waited for" : "since it was abandoned"),
  );
}

function inWords(name, figure) {
  return name.endsWith("Usd") ? usd(figure) : inFull(figure);
}

function showRun(run) {
  const tiles = element("dl", { class: "tiles plain" });
  for (const [name, meaning] of Object.entries(MEANINGS)) {
    tiles.append(tile(element("code", {}, name), inWords(name, run[name]), meaning));
  }
  const models = Object.entries(run.byModel);
  const made = [element("h4", {}, run.run), tiles];
  if (run.turns === 0 && models.length === 0) {
    made.splice(1, 1, element("p", { class: "empty" }, "The ledger has nothing of this run. Its name is what the caller sends, to the letter."));
  }
  if (models.length) {
    const heads = ["Model", ...COLUMNS].map((name, at) =>
      element("th", { scope: "col", role: "columnheader", class: at ? "number" : "" }, at ? element("code", {}, name) : name));
    made.push(
      element(
        "table",
        { class: "rows", role: "table", "aria-label": `Run ${run.run} by model` },
        element("thead", { role: "rowgroup" }, row(...heads)),
        element("tbody", { role: "rowgroup" }, ...models.map(([model, told]) =>
          row(cell("Model", "head", element("b", { class: "name" }, model || "no model named")), ...COLUMNS.map((name) => cell(name, "number", inFull(told[name]))))),
        ),
      ),
    );
  }
  byId("run").replaceChildren(...made);
}

byId("look-up").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { run } = Object.fromEntries(new FormData(event.target));
  const { ok, answer } = await ask(`../runs/${encodeURIComponent(run)}`);
  fail(byId("run-fault"), ok ? "" : answer.error);
  if (ok) showRun(answer);
});
