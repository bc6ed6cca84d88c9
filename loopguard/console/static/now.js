// The exchanges in flight. Rows stay where they are while their figures change.

import { inFull } from "./curve.js";
import { byId, cell, element, row, setText } from "./dom.js";

const STATES = {
  asking: "waiting for its first delta",
  streaming: "streaming",
  holding: "holding",
  suspected: "suspected",
  waiting: "waiting to ask again",
  delivering: "delivering",
};
const rows = new Map();

function makeRow(exchange) {
  const parts = {
    model: element("b", { class: "name" }, exchange.model || "no model named"),
    state: element("span", { class: "state" }),
    attempt: element("span"),
    elapsed: element("span"),
    chars: element("span"),
    levels: element("div", { class: "levels" }),
    unread: element("span", { class: "quiet" }, "no rule has read anything"),
  };
  const model = cell("Model", "head", parts.model);
  if (exchange.run) model.append(element("span", { class: "quiet block" }, `run ${exchange.run}`));
  const line = row(
    model,
    cell("Profile", "", exchange.profile),
    cell("Dialect", "", exchange.dialect),
    cell("State", "", parts.state),
    cell("Attempt", "number", parts.attempt),
    cell("Seconds", "number", parts.elapsed),
    cell("Characters", "number", parts.chars),
    cell("Levels", "wide", parts.levels, parts.unread),
  );
  return { line, parts, bars: new Map() };
}

function makeBar(rule) {
  const fill = element("span", { class: `fill ${rule}` });
  const told = element("span", { class: "figure" });
  const bar = element(
    "div",
    { class: "level-bar" },
    element("span", { class: "rule" }, rule),
    element("span", { class: "track", "aria-hidden": "true" }, fill),
    told,
  );
  return { bar, fill, told };
}

function update({ line, parts, bars }, exchange) {
  setText(parts.state, STATES[exchange.state]);
  parts.state.dataset.state = exchange.state;
  line.dataset.state = exchange.state;
  setText(parts.attempt, String(exchange.attempt));
  setText(parts.elapsed, exchange.elapsed_s.toFixed(1));
  setText(parts.chars, inFull(exchange.chars));
  parts.unread.hidden = exchange.levels.length > 0;
  const rules = new Set(exchange.levels.map((level) => level.rule));
  for (const [rule, { bar }] of bars) {
    if (rules.has(rule)) continue;
    bar.remove();
    bars.delete(rule);
  }
  for (const { rule, now, floor } of exchange.levels) {
    if (!bars.has(rule)) {
      bars.set(rule, makeBar(rule));
      parts.levels.append(bars.get(rule).bar);
    }
    const { fill, told } = bars.get(rule);
    fill.style.inlineSize = `${Math.min(100, (100 * now) / floor).toFixed(1)}%`;
    setText(told, `${inFull(now)} of ${inFull(floor)}`);
  }
}

/** Show what one event of the stream says. */
export function showNow(seen) {
  setText(byId("in-flight"), inFull(seen.in_flight));
  setText(byId("suspected"), inFull(seen.suspected));
  byId("suspected").dataset.some = seen.suspected > 0;
  const body = byId("exchanges");
  const names = new Set(seen.exchanges.map((each) => each.exchange));
  for (const [name, { line }] of rows) {
    if (names.has(name)) continue;
    line.remove();
    rows.delete(name);
  }
  seen.exchanges.forEach((exchange, at) => {
    if (!rows.has(exchange.exchange)) rows.set(exchange.exchange, makeRow(exchange));
    const made = rows.get(exchange.exchange);
    update(made, exchange);
    if (body.children[at] !== made.line) body.insertBefore(made.line, body.children[at] ?? null);
  });
  byId("now-rows").hidden = seen.exchanges.length === 0;
  byId("now-empty").hidden = seen.exchanges.length > 0;
  const left = seen.in_flight - seen.exchanges.length;
  byId("not-shown").hidden = left <= 0;
  setText(byId("not-shown"), `${inFull(left)} more are in flight. The suspected are shown first, then the oldest.`);
}
