// Try a reply: the server judges it by the draft, the page draws its curves.

import { drawCurve } from "./curve.js";
import { ask, byId, element, fail, figures, setText } from "./dom.js";

const form = byId("trial");
const card = byId("try");

function replyCard(reply) {
  const made = element("article", { class: reply.tripped ? "reply tripped" : "reply passed" }, element("h4", { class: "name" }, reply.id));
  const verdict = element("p", {}, element("b", { class: "badge" }, reply.tripped ? `tripped by ${reply.rule}` : "passed"));
  if (reply.tripped) {
    verdict.append(` at character ${figures(reply.at_char)}: ${reply.sentence}.`);
    if (reply.onset_char !== null) verdict.append(` It began about character ${figures(reply.onset_char)}.`);
  } else {
    verdict.append(`: ${figures(reply.words)} words, ${figures(reply.chars)} characters.`);
  }
  made.append(verdict, ...reply.curves.map(drawCurve));
  if (reply.excerpt) {
    made.append(
      element("p", { class: "quiet" }, reply.tripped ? "What repeated" : "The text at the highest level"),
      element("pre", { tabindex: "0", "aria-label": "Text of the reply" }, reply.excerpt),
    );
  }
  return made;
}

async function judge(name, content, stand) {
  const sent = new FormData();
  sent.append("draft", JSON.stringify(stand));
  sent.append("reply", new Blob([content]), name);
  setText(byId("trial-verdict"), "Judging.");
  byId("trial-replies").replaceChildren();
  const { ok, status, answer } = await ask("configuration/try", { form: sent });
  const why = answer.faults?.join("; ") ?? answer.error ?? "";
  fail(byId("trial-fault"), ok ? answer.faults.join("; ") : status === 413 ? "That is more than 8 MB; loopguard scan reads any size." : why);
  if (!ok) {
    setText(byId("trial-verdict"), "");
    return;
  }
  const more = answer.total > answer.replies.length ? ` The first ${answer.replies.length} are shown.` : "";
  setText(byId("trial-verdict"), `${figures(answer.total)} ${answer.total === 1 ? "reply" : "replies"}, ${figures(answer.tripped)} would trip.${more}`);
  byId("trial-replies").replaceChildren(...answer.replies.map(replyCard));
}

/** @param {() => object} stand the draft and the profile as they stand on the page. */
export function setUpTrial(stand) {
  const tryOut = () => {
    const file = form.elements.file.files[0];
    const text = form.elements.text.value;
    if (text) return judge("pasted", text, stand());
    if (file) return judge(file.name, file, stand());
    fail(byId("trial-fault"), "Paste a reply or choose a file first.");
    return undefined;
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryOut();
  });
  form.elements.file.addEventListener("change", () => {
    if (!form.elements.file.files.length) return;
    form.elements.text.value = "";
    tryOut();
  });
  card.addEventListener("dragover", (event) => {
    event.preventDefault();
    card.classList.add("dropping");
  });
  card.addEventListener("dragleave", () => card.classList.remove("dropping"));
  card.addEventListener("drop", (event) => {
    event.preventDefault();
    card.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    const text = event.dataTransfer.getData("text/plain");
    if (file) judge(file.name, file, stand());
    else if (text) judge("dropped", text, stand());
  });
}
