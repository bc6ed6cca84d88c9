// The report: how near the replies came to each floor, and a card for each reply.

import { html, inFull, percent } from "./curve.js";
import { drawReply, nearness } from "./reply.js";

const AT_ONCE = 30; // cards drawn before the next are asked for by scrolling
const RULES = ["frequency", "stretch", "length"];

const knobs = JSON.parse(document.getElementById("knobs").textContent);
const replies = document
  .getElementById("replies")
  .textContent.split("\n")
  .filter((line) => line)
  .map((line) => JSON.parse(line));

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
  const peak = html("dd", "");
  if (highest === undefined) {
    peak.append("none passed");
  } else {
    const find = html("button", "find", highest.id);
    find.type = "button";
    find.addEventListener("click", () => showOne(highest.id));
    const level = highest.peaks[rule].peak;
    peak.append(`${inFull(level)} (${percent(level / floor)}) by `, find);
  }
  const told = html(
    "dl",
    "",
    html("dt", "", "Floor"),
    html("dd", "", `${inFull(floor)} ${rule === "frequency" ? "words" : "characters"}`),
    html("dt", "", "Tripped by it"),
    html("dd", "", inFull(replies.filter((reply) => reply.rule === rule).length)),
    html("dt", "", "Highest peak that passed"),
    peak,
    html("dt", "", "Knobs"),
    html("dd", "", knobsOf(rule)),
  );
  return html("section", "rule", html("h3", rule, rule), told);
}

const form = document.getElementById("choice");
const list = document.getElementById("list");
const more = document.getElementById("more");
let chosen = [];
let drawn = 0;

function drawMore() {
  const next = chosen.slice(drawn, drawn + AT_ONCE);
  list.append(...next.map((reply) => drawReply(reply, "h3")));
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
