// A curve of how near each rule came to its floor, over the characters of a reply.
//
// All rules share one scale, the share of the floor, so that curves of different rules and replies
// can be compared. The picture stretches with its place; what is read in it is text beside it.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000;
const HEIGHT = 100;
const TOP_SHARE = 1.12; // a level that passes its floor is seen to pass it
const PAGE_STEPS = 10;

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A figure as people read it: no fraction, thousands apart. */
export function inFull(figure) {
  return whole.format(figure);
}

/** A share in per cent; what is there is never told as nothing. */
export function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${inFull(share * 100)} %`;
}

/** Make an element of SVG. */
export function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Make an element of HTML; what is not a node among its content becomes text. */
export function html(name, className = "", ...content) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

function levelInWords(rule, level) {
  return `${inFull(level)} of ${inFull(rule.floor)} ${rule.unit}`;
}

/**
 * Draw one curve.
 *
 * @param {object} curve
 *   `label`: what it is of; `chars`: characters read at each point; `rules`: for each its `name`,
 *   `unit`, `peak`, `floor` and `levels`, one for each point; `trip_char` and `onset_char`: null or
 *   where the reply tripped and where its loop began.
 * @returns {HTMLElement} a figure; its plot takes the focus, and arrow keys read the points.
 */
export function drawCurve(curve) {
  const lastChar = curve.chars.at(-1) || 1;
  const x = (char) => (Math.min(char, lastChar) / lastChar) * WIDTH;
  const y = (share) => HEIGHT - (Math.min(share, TOP_SHARE) / TOP_SHARE) * HEIGHT;

  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  if (curve.onset_char !== null) {
    const start = x(curve.onset_char);
    const width = x(curve.trip_char) - start;
    picture.append(svg("rect", { class: "loop", x: start, y: 0, width, height: HEIGHT }));
  }
  for (const share of [0, 0.5]) {
    picture.append(
      svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(share), y2: y(share) }),
    );
  }
  picture.append(svg("line", { class: "floor", x1: 0, x2: WIDTH, y1: y(1), y2: y(1) }));
  for (const rule of curve.rules) {
    const points = rule.levels.map(
      (level, at) => `${x(curve.chars[at]).toFixed(1)},${y(level / rule.floor).toFixed(1)}`,
    );
    const start = `0,${HEIGHT}`;
    picture.append(
      svg("polyline", { class: `level ${rule.name}`, points: [start, ...points].join(" ") }),
    );
  }
  if (curve.trip_char !== null) {
    const at = x(curve.trip_char);
    picture.append(svg("line", { class: "trip", x1: at, x2: at, y1: 0, y2: HEIGHT }));
  }
  const cursor = svg("line", { class: "cursor", x1: 0, x2: 0, y1: 0, y2: HEIGHT });
  cursor.setAttribute("visibility", "hidden");
  picture.append(cursor);

  const plot = html("div", "plot", picture);
  const shares = html(
    "div",
    "shares",
    html("span", "share at-100", "floor"),
    html("span", "share at-50", "50 %"),
    html("span", "share at-0", "0"),
  );
  const characters = html(
    "div",
    "characters",
    html("span", "", "0"),
    html("span", "", `${inFull(lastChar)} characters`),
  );

  const caption = html("figcaption", "", html("b", "", curve.label));
  for (const rule of curve.rules) {
    const line = svg("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
    line.append(svg("line", { class: `level ${rule.name}`, x1: 0, x2: 24, y1: 4, y2: 4 }));
    caption.append(html("span", "key", line, `${rule.name}: peak ${levelInWords(rule, rule.peak)}`));
  }

  const reading = html("p", "reading quiet");
  const figure = html("figure", "curve", caption, shares, plot, characters, reading);
  readPoints(curve, plot, cursor, x, reading);
  return figure;
}

/** Let a pointer and the arrow keys read the points, as on a slider. */
function readPoints(curve, plot, cursor, x, reading) {
  const last = curve.chars.length - 1;
  let at = last;
  plot.tabIndex = 0;
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-label", `Levels of ${curve.label}, by character`);
  plot.setAttribute("aria-valuemin", "0");
  plot.setAttribute("aria-valuemax", String(curve.chars[last]));

  const told = () =>
    `at character ${inFull(curve.chars[at])}: ` +
    curve.rules.map((rule) => `${rule.name} ${levelInWords(rule, rule.levels[at])}`).join("; ");
  const moveTo = (point, seen) => {
    at = Math.max(0, Math.min(last, point));
    plot.setAttribute("aria-valuenow", String(curve.chars[at]));
    plot.setAttribute("aria-valuetext", told());
    if (!seen) return;
    cursor.setAttribute("x1", x(curve.chars[at]));
    cursor.setAttribute("x2", x(curve.chars[at]));
    cursor.setAttribute("visibility", "visible");
    reading.textContent = told();
  };
  moveTo(last, false);

  plot.addEventListener("focus", () => moveTo(at, true));
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const char = ((event.clientX - box.left) / box.width) * curve.chars[last];
    const beyond = curve.chars.findIndex((read) => read >= char);
    moveTo(beyond < 0 ? last : beyond, true);
  });
  plot.addEventListener("keydown", (event) => {
    const steps = {
      ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1,
      PageDown: -PAGE_STEPS, PageUp: PAGE_STEPS, Home: -last, End: last,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    moveTo(at + steps[event.key], true);
  });
}
