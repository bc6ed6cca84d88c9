// The report: how near the replies came to each floor, and a card for each reply.

import { drawCurve, inFull } from "./curve.js";

const AT_ONCE = 30; // cards drawn before the next are asked for by scrolling
const RULES = ["frequency", "stretch", "length"];

const knobs = JSON.parse(document.getElementById("knobs").textContent);
const replies = document
  .getElementById("replies")
  .textContent.split("\n")
  .filter((line) => line)
  .map((line) => JSON.parse(line));

function element(name, className, ...content) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content.map(String));
  return made;
}

/** The greatest share of a floor that a reply came to; the length backstop, which only grows, aside. */
function nearness(reply) {
  const shares = Object.entries(reply.peaks)
    .filter(([rule]) => rule !== "length")
    .map(([, level]) => level.peak / level.floor);
  return Math.max(0, ...shares);
}

function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${inFull(share * 100)} %`;
}

function knobsOf(rule) {
  const { max_response_chars: ceiling, ...frequency } = knobs.frequency ?? {};
  const of = { frequency, stretch: knobs.stretch, length: { max_response_chars: ceiling } };
  return Object.entries(of[rule])
    .map(([knob, figure]) => `${knob} ${figure}`)
    .join(", ");
}

/** What an operator sets a knob by: who tripped, and how near the others came. */
function tellRule(rule) {
  const seen = replies.filter((reply) => rule in reply.peaks);
  const floor = seen[0].peaks[rule].floor;
  const [highest] = seen
    .filter((reply) => !reply.tripped)
    .sort((a, b) => b.peaks[rule].peak - a.peaks[rule].peak);
  const peak = element("dd", "");
  if (highest === undefined) {
    peak.append("none passed");
  } else {
    const find = element("button", "find", highest.id);
    find.type = "button";
    find.addEventListener("click", () => showOne(highest.id));
    const level = highest.peaks[rule].peak;
    peak.append(`${inFull(level)} (${percent(level / floor)}) by `, find);
  }
  const told = element("dl");
  told.append(
    element("dt", "", "Floor"),
    element("dd", "", `${inFull(floor)} ${rule === "frequency" ? "words" : "characters"}`),
    element("dt", "", "Tripped by it"),
    element("dd", "", inFull(replies.filter((reply) => reply.rule === rule).length)),
    element("dt", "", "Highest peak that passed"),
    peak,
    element("dt", "", "Knobs"),
    element("dd", "", knobsOf(rule)),
  );
  const made = element("section", "rule");
  made.append(element("h3", rule, rule), told);
  return made;
}

function card(reply) {
  const made = element("article", reply.tripped ? "tripped" : "passed");
  const title = element("h3", "", reply.id);
  const verdict = element("p");
  const badge = element("span", "badge", reply.tripped ? `tripped by ${reply.rule}:` : "passed:");
  verdict.append(badge, " ");
  if (reply.tripped) {
    verdict.append(reply.sentence);
    if (reply.onset_char !== null) verdict.append(`, from character ${inFull(reply.onset_char)} on`);
    verdict.append(".");
  } else {
    verdict.append(`nearest a floor: ${percent(nearness(reply))}.`);
  }
  verdict.append(
    ` The whole reply has ${inFull(reply.words)} words, ${inFull(reply.chars)} characters.`,
  );
  made.append(title, verdict, ...reply.curves.map(drawCurve));
  if (reply.excerpt) {
    const what = reply.period_chars !== null
      ? `What repeated, every ${inFull(reply.period_chars)} characters`
      : reply.tripped ? "The text at the trip" : "The text at the highest level";
    made.append(element("p", "quiet", what), element("pre", "", reply.excerpt));
  }
  return made;
}

const form = document.getElementById("choice");
const list = document.getElementById("list");
const more = document.getElementById("more");
let chosen = [];
let drawn = 0;

function drawMore() {
  const next = chosen.slice(drawn, drawn + AT_ONCE);
  list.append(...next.map(card));
  drawn += next.length;
  more.hidden = drawn === chosen.length;
  more.textContent = `Show more (${inFull(chosen.length - drawn)} left)`;
}

function choose() {
  const { show: which, order, id } = Object.fromEntries(new FormData(form));
  chosen = replies.filter(
    (reply) => (which === "all" || reply.tripped === (which === "tripped")) && reply.id.includes(id),
  );
  if (order === "near") chosen.sort((a, b) => nearness(b) - nearness(a));
  document.getElementById("shown").textContent = chosen.length
    ? `${inFull(chosen.length)} of ${inFull(replies.length)} replies. ` +
      "Point at a curve, or focus it and press the arrow keys, to read it."
    : replies.length
      ? "No reply is like that. Show all, or empty the field for the id."
      : "No reply was read. What was wrong stands in the output of the command.";
  list.replaceChildren();
  drawn = 0;
  drawMore();
}

function showOne(id) {
  form.elements.show.value = "all";
  form.elements.id.value = id;
  choose();
  document.getElementById("replies-title").scrollIntoView();
}

const tripped = replies.filter((reply) => reply.tripped).length;
document.getElementById("verdict").textContent =
  `${inFull(replies.length)} replies, ${inFull(tripped)} of them tripped`;
const rules = RULES.filter((rule) => replies.some((reply) => rule in reply.peaks));
document.getElementById("rules").append(...rules.map(tellRule));
form.addEventListener("input", choose);
form.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", drawMore);
new IntersectionObserver((seen) => {
  if (seen.some((entry) => entry.isIntersecting)) drawMore();
}, { rootMargin: "400px" }).observe(more);
choose();
