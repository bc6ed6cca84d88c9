// Try a reply: the server judges it by the draft, the page draws its curves.

import { inFull } from "./curve.js";
import { ask, byId, fail, setText } from "./dom.js";
import { drawReply } from "./reply.js";

const form = byId("trial");
const card = byId("try");
const replies = byId("trial-replies");

async function judge(name, content, stand) {
  const sent = new FormData();
  sent.append("draft", JSON.stringify(stand));
  sent.append("reply", new Blob([content]), name);
  setText(byId("trial-verdict"), "Judging.");
  replies.replaceChildren();
  outdate();
  const { ok, status, answer } = await ask("configuration/try", { form: sent });
  const tooLarge = status === 413 ? "That is more than 8 MB; loopguard scan reads any size." : "";
  fail(byId("trial-fault"), tooLarge || (answer.faults?.join("; ") ?? answer.error));
  setText(byId("trial-verdict"), ok ? sum(answer) : "");
  if (ok) replies.replaceChildren(...answer.replies.map((reply) => drawReply(reply, "h4")));
}

function sum({ replies: shown, total, tripped }) {
  const more = total > shown.length ? ` The first ${inFull(shown.length)} are shown.` : "";
  return `${inFull(total)} ${total === 1 ? "reply" : "replies"}, ${inFull(tripped)} would trip.${more}`;
}

/** The knobs are no longer those that the verdict on the page is by. */
export function outdate() {
  byId("trial-outdated").hidden = !replies.childElementCount;
}

/** @param {() => object} stand the draft and the profile as they stand on the page. */
export function setUpTrial(stand) {
  const tryOut = () => {
    const file = form.elements.file.files[0];
    const text = form.elements.text.value;
    if (text) judge("pasted", text, stand());
    else if (file) judge(file.name, file, stand());
    else fail(byId("trial-fault"), "Paste a reply or choose a file first.");
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
  // A file that is dropped beside the card would replace the page, and the draft with it.
  for (const name of ["dragover", "drop"]) {
    addEventListener(name, (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
  }
}
