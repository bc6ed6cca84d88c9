// A reply that was judged: its verdict, its curves, and the text that the verdict is about.

import { drawCurve, html, inFull, percent } from "./curve.js";

/** The greatest share of a floor that a reply came to; the length backstop, which only grows, aside. */
export function nearness(reply) {
  const shares = Object.entries(reply.peaks)
    .filter(([rule]) => rule !== "length")
    .map(([, level]) => level.peak / level.floor);
  return Math.max(0, ...shares);
}

function whatExcerptIs(reply) {
  if (reply.period_chars !== null) {
    return `What repeated, every ${inFull(reply.period_chars)} characters`;
  }
  return reply.tripped ? "The text at the trip" : "The text at the highest level";
}

/** Draw a reply, as `loopguard.scan.page.entry` tells it, below a heading of this name. */
export function drawReply(reply, heading) {
  const verdict = html("p");
  if (reply.tripped) {
    const begins = reply.onset_char === null ? "" : `, from character ${inFull(reply.onset_char)} on`;
    verdict.append(
      html("b", "badge", `tripped by ${reply.rule} at character ${inFull(reply.at_char)}`),
      `: ${reply.sentence}${begins}.`,
    );
  } else {
    verdict.append(html("b", "badge", "passed"), `: nearest a floor ${percent(nearness(reply))}.`);
  }
  verdict.append(
    ` The whole reply has ${inFull(reply.words)} words, ${inFull(reply.chars)} characters.`,
  );
  const made = html(
    "article",
    reply.tripped ? "reply tripped" : "reply passed",
    html(heading, "name", reply.id),
    verdict,
    ...reply.curves.map(drawCurve),
  );
  if (reply.excerpt) {
    const excerpt = html("pre", "", reply.excerpt);
    excerpt.tabIndex = 0; // it scrolls
    excerpt.setAttribute("aria-label", "Text of the reply");
    made.append(html("p", "quiet", whatExcerptIs(reply)), excerpt);
  }
  return made;
}
