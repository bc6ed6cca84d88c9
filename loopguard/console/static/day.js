// A curve over the hours of the last day, and the same as a table.

import { svg } from "./curve.js";
import { element, time } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 100;
const EDGE = 1; // half a line's width, which would be cut off

/** @param {(figure: number) => string} inWords how a figure of `hours[].key` is told. */
export function drawDay(title, hours, key, inWords) {
  const most = Math.max(...hours.map((hour) => hour[key]));
  const figure = element("figure", { class: "card day" }, element("figcaption", {}, element("b", {}, title)));
  if (!most) {
    figure.append(element("p", { class: "quiet" }, "Nothing in the last day."));
    return figure;
  }
  figure.append(
    element("div", { class: "scale", "aria-hidden": "true" }, element("span", {}, inWords(most)), element("span", {}, "0")),
    element("div", { class: "picture" }, drawPicture(hours.map((hour) => hour[key] / most))),
    element("div", { class: "hours", "aria-hidden": "true" }, ...["24 h ago", "12 h ago", "now"].map((at) => element("span", {}, at))),
    element("details", {}, element("summary", {}, "As a table"), makeTable(title, hours, key, inWords)),
  );
  return figure;
}

/** Draw shares of the largest. */
function drawPicture(shares) {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const x = (at) => (at / (shares.length - 1)) * WIDTH;
  const y = (share) => HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE);
  for (const share of [0, 0.5, 1]) {
    picture.append(svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(share), y2: y(share) }));
  }
  const points = shares.map((share, at) => `${x(at).toFixed(1)},${y(share).toFixed(1)}`).join(" ");
  picture.append(
    svg("polygon", { class: "area", points: `0,${HEIGHT} ${points} ${WIDTH},${HEIGHT}` }),
    svg("polyline", { class: "line", points }),
  );
  return picture;
}

function makeTable(title, hours, key, inWords) {
  const table = element(
    "table",
    {},
    element("caption", { class: "unseen" }, title),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Hour from"), element("th", { scope: "col", class: "number" }, "Thrown away"))),
    element("tbody", {}, ...hours.map((hour) => element("tr", {}, element("td", {}, time(hour.at_s)), element("td", { class: "number" }, inWords(hour[key]))))),
  );
  return element("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": title }, table);
}
