// The editor: the draft on the page, the server's judgement of it, and what is done with it.

import { ask, byId, element, fail, setText, token } from "./dom.js";
import { draft, named, split } from "./draft.js";
import { showFaults, showFields } from "./fields.js";
import { outdate, setUpTrial } from "./trial.js";

const JUDGE_AFTER_MS = 250; // once somebody has stopped typing

let judged = null; // what the server says of the draft
let judging = 0;
let pause = null;

const chosen = () => byId("profile").value;

function change(path, value) {
  draft.change(path, value);
  setText(byId("applied"), "");
  judged = { ...judged, stale: true };
  outdate();
  showDraft();
  clearTimeout(pause);
  pause = setTimeout(judge, JUDGE_AFTER_MS);
}

/** The view is on the screen; a draft that was begun is kept. */
export async function showConfiguration() {
  if (!draft.typed.size) await read();
}

async function read() {
  const { ok, answer } = await ask("configuration");
  byId("editor").hidden = !ok;
  byId("draft-bar").hidden = !ok;
  byId("configuration-fault").hidden = ok;
  if (ok) {
    take(answer);
    return;
  }
  byId("configuration-fault").replaceChildren(
    element("p", { class: "fault" }, answer.faults ? "The file is refused as it stands. Mend it, then come back:" : answer.error),
    faultList(answer.faults ?? []),
  );
  setText(byId("standing"), "");
}

function take(file) {
  draft.begin(file);
  judged = { faults: [], warnings: file.warnings, sentences: file.sentences };
  byId("standing").replaceChildren("Read from ", element("code", {}, file.place ?? "the configuration that loopguard ships with"), `. ${whatCanBeDone(file)}`);
  byId("token").hidden = file.may_change || !file.takes_token;
  const before = chosen();
  byId("profile").replaceChildren(...Object.keys(file.profiles).map((name) => element("option", { value: name }, name)));
  if (before in file.profiles) byId("profile").value = before;
  show();
}

function whatCanBeDone(file) {
  if (!file.may_change) return `Read-only without ${file.takes_token ? "the admin token" : "a connection from this machine"}: a draft can be tried and copied, and not applied.`;
  if (file.writable) return "Changes are judged as they are typed, and apply to the next exchange once you apply them.";
  if (file.place) return "It cannot be written here: a draft can be tried, and copied as TOML.";
  return "It is not edited: a draft can be tried, and copied as TOML into a file for loopguard serve --config.";
}

function show() {
  showFields(chosen(), change);
  showDraft();
}

function faultList(faults) {
  return element("ul", { class: "faults" }, ...faults.map((fault) => element("li", {}, fault)));
}

function inWords(value) {
  if (Array.isArray(value)) return value.length ? value.join(", ") : "none";
  if (typeof value === "boolean") return value ? "on" : "off";
  return value === "" ? "empty" : value;
}

function changeLine([key, value]) {
  const path = split(key);
  return element("li", {}, `${named(path)} `, element("span", { class: "change" }, `${inWords(draft.written(path))} → ${inWords(value)}`));
}

function showDraft() {
  const changed = draft.typed.size > 0;
  const said = [];
  if (judged.stale) said.push(element("p", { class: "quiet" }, "Judging."));
  else if (judged.faults.length) said.push(element("p", { class: "fault" }, "Refused, as the launch would refuse it:"), faultList(judged.faults));
  else if (changed) said.push(element("p", { class: "passed" }, "It would be launched."));
  if (judged.warnings?.length) said.push(element("p", { class: "warning" }, "Warned of:"), faultList(judged.warnings));
  said.push(
    changed
      ? element("ul", { class: "changes" }, ...[...draft.typed].map(changeLine))
      : element("p", {}, "Nothing is changed. Move a knob, and what follows from it stands here before anything is applied."),
  );
  byId("draft").replaceChildren(...said);
  byId("draft-bar").dataset.changed = changed;
  const { may_change: mayChange, writable } = draft.file;
  byId("undo").disabled = !changed;
  byId("apply").disabled = !changed || Boolean(judged.stale) || judged.faults.length > 0 || !mayChange;
  byId("apply").hidden = !writable;
  byId("copy").disabled = judged.faults.length > 0;
  byId("toml-label").hidden = true;
  showFaults(judged.faults);
  const sentence = judged.sentences[chosen()];
  setText(byId("sentence"), sentence ? `${sentence}.` : "loop detection: nothing is armed.");
}

function refused({ faults, error }) {
  judged = { sentences: judged.sentences, warnings: [], faults: faults ?? [error] };
  showDraft();
}

async function judge() {
  judging += 1;
  const number = judging;
  const { ok, answer } = await ask("configuration/judge", { body: { changes: draft.changes() } });
  if (number !== judging) return; // the draft has changed meanwhile
  if (!ok) {
    refused(answer);
    return;
  }
  judged = answer;
  showDraft();
}

async function apply() {
  setText(byId("applied"), "Applying.");
  const { ok, answer } = await ask("configuration/apply", { body: { changes: draft.changes(), version: draft.file.version } });
  if (!ok) {
    refused(answer);
    setText(byId("applied"), "Nothing was changed.");
    return;
  }
  const { may_change, takes_token } = draft.file;
  take({ may_change, takes_token, ...answer });
  setText(byId("applied"), `Applied: the next exchange goes by it. The old file is ${answer.kept}.`);
}

async function copy() {
  const { ok, answer } = await ask("configuration/judge", { body: { changes: draft.changes() } });
  if (!ok) {
    refused(answer);
    return;
  }
  byId("toml-label").hidden = false;
  byId("toml").value = answer.toml;
  byId("toml").select();
  const copied = await navigator.clipboard?.writeText(answer.toml).then(() => true, () => false);
  setText(byId("applied"), copied ? "Copied." : "Select it and copy it.");
}

async function present(presented) {
  token.set(presented);
  const kept = draft.typed;
  await read();
  draft.typed = kept;
  show();
  fail(byId("token-fault"), draft.file.may_change ? "" : "That is not the admin token.");
  await judge();
}

byId("profile").addEventListener("change", () => {
  outdate();
  show();
});
byId("apply").addEventListener("click", apply);
byId("copy").addEventListener("click", copy);
byId("undo").addEventListener("click", () => {
  outdate();
  read();
});
byId("fields").addEventListener("submit", (event) => event.preventDefault());
byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  present(new FormData(event.target).get("token"));
  event.target.reset();
});
setUpTrial(() => ({ changes: draft.changes(), profile: chosen() }));
