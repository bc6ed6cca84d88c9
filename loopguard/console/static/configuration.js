// The editor: what the file says, the draft on the page, and the server's judgement of it.

import { ask, byId, element, fail, setText, token } from "./dom.js";
import { PROFILE, RETRY } from "./knobs.js";
import { setUpTrial } from "./trial.js";

const JUDGE_AFTER_MS = 250; // once somebody has stopped typing

let file = null; // what the server said of the file
let draft = new Map(); // a key's path, joined, and what was typed there
let judged = null;
let judging = 0;
let pause = null;

const joined = (path) => path.join("\n");
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const named = ([table, profile, ...keys]) =>
  table === "retry" ? `retry: ${profile}` : `profile \`${profile}\`: ${keys.join(".")}`;

/** What the file says of a key, as the page's fields say it. */
function written(path) {
  const value = path.reduce((table, key) => table?.[key], file);
  if (typeof value === "boolean" || Array.isArray(value)) return value;
  return value === null || value === undefined ? "" : String(value);
}

const current = (path) => draft.get(joined(path)) ?? written(path);

export function changes() {
  return [...draft].map(([key, value]) => ({ path: key.split("\n"), value }));
}

const chosen = () => byId("profile").value;

function change(path, value) {
  if (same(value, written(path))) draft.delete(joined(path));
  else draft.set(joined(path), value);
  setText(byId("applied"), "");
  judged = { ...judged, stale: true };
  showDraft();
  clearTimeout(pause);
  pause = setTimeout(judge, JUDGE_AFTER_MS);
}

/** The view is on the screen; a draft that was begun is kept. */
export async function showConfiguration() {
  if (draft.size) return;
  await read();
}

async function read() {
  const { ok, answer } = await ask("configuration");
  byId("editor").hidden = !ok;
  byId("draft-bar").hidden = !ok;
  byId("configuration-fault").hidden = ok;
  if (!ok) {
    byId("configuration-fault").replaceChildren(
      element("p", { class: "fault" }, answer.faults ? "The file is refused as it stands. Mend it, then come back:" : answer.error),
      faultList(answer.faults ?? []),
    );
    setText(byId("standing"), "");
    return;
  }
  take(answer);
}

function take(answer) {
  file = answer;
  draft = new Map();
  judged = { faults: [], warnings: file.warnings, sentences: file.sentences };
  const place = file.place ?? "the configuration that loopguard ships with";
  const can = file.may_change
    ? file.writable
      ? "Changes are judged as they are typed, and apply to the next exchange once you apply them."
      : file.place
        ? "It cannot be written here: a draft can be tried, and copied as TOML."
        : "It is not edited: a draft can be tried, and copied as TOML into a file for loopguard serve --config."
    : `Read-only without ${file.takes_token ? "the admin token" : "a connection from this machine"}: a draft can be tried and copied, and not applied.`;
  byId("standing").replaceChildren(element("span", {}, "Read from "), element("code", {}, place), element("span", {}, `. ${can}`));
  byId("token").hidden = file.may_change || !file.takes_token;
  const select = byId("profile");
  const before = select.value;
  select.replaceChildren(...Object.keys(file.profiles).map((name) => element("option", { value: name }, name)));
  if (before in file.profiles) select.value = before;
  showFields();
  showDraft();
}

function faultList(faults) {
  return element("ul", { class: "faults" }, ...faults.map((fault) => element("li", {}, fault)));
}

function variableOf(path) {
  return file.variables.find((each) => same(each.path, path))?.variable;
}

let unique = 0;

/** One field: its label, its control, what moving it trades, and what the server says of it. */
function makeField(field, path) {
  const id = `field-${(unique += 1)}`;
  const variable = variableOf(path);
  const value = current(path);
  const tied = { id, name: path.join("."), "data-path": joined(path), "aria-describedby": `${id}-trade ${id}-fault`, disabled: Boolean(variable) };
  let control;
  let typed = () => control.value;
  if (field.kind === "switch") {
    control = element("input", { ...tied, type: "checkbox", role: "switch" });
    control.checked = value === true;
    typed = () => control.checked;
  } else if (field.kind === "choice") {
    control = element("select", tied, ...field.options.map((option) => element("option", { value: option }, option)));
    control.value = value;
  } else if (field.kind === "set") {
    return makeSet(field, path, id, variable);
  } else {
    control = element("input", { ...tied, type: "text", inputmode: field.kind === "number" ? "decimal" : "text", spellcheck: "false" });
    control.value = field.kind === "list" ? value.join(", ") : value;
    if (field.kind === "list") typed = () => control.value.split(",").map((name) => name.trim()).filter(Boolean);
  }
  control.addEventListener("input", () => change(path, typed()));
  return element(
    "div",
    { class: `field ${field.kind}` },
    element("label", { for: id }, field.label),
    element("div", { class: "control" }, control, field.unit ? element("span", { class: "unit" }, field.unit) : ""),
    ...notes(field, id, variable),
  );
}

function makeSet(field, path, id, variable) {
  const boxes = field.options.map((option) => {
    const box = element("input", { type: "checkbox", value: option, disabled: Boolean(variable) });
    box.checked = current(path).includes(option);
    return box;
  });
  const group = element(
    "div",
    { class: "control boxes", role: "group", id, "data-path": joined(path), "aria-labelledby": `${id}-label`, "aria-describedby": `${id}-trade ${id}-fault` },
    ...boxes.map((box) => element("label", {}, box, ` ${box.value}`)),
  );
  group.addEventListener("input", () => change(path, boxes.filter((box) => box.checked).map((box) => box.value)));
  return element("div", { class: "field set" }, element("span", { class: "label", id: `${id}-label` }, field.label), group, ...notes(field, id, variable));
}

function notes(field, id, variable) {
  const trade = element("p", { class: "trade", id: `${id}-trade` }, field.trade);
  if (variable) trade.append(element("span", { class: "block" }, "Set by ", element("code", {}, variable), ", which stands over the file."));
  return [trade, element("p", { class: "fault", id: `${id}-fault`, hidden: true })];
}

function makeGroup(group, base) {
  const path = [...base, ...group.table];
  const made = element("fieldset", { class: "card" });
  const body = element("div", { class: "body" });
  if (group.arms) {
    const armed = element("input", { type: "checkbox", role: "switch", id: `arm-${group.table[0]}`, "data-path": joined([...path, group.arms]), disabled: Boolean(variableOf([...path, group.arms])) });
    armed.checked = current([...path, group.arms]) === true;
    body.dataset.armed = armed.checked;
    armed.addEventListener("input", () => {
      body.dataset.armed = armed.checked;
      change([...path, group.arms], armed.checked);
      if (armed.checked) fillIn(group, path);
    });
    made.append(element("legend", {}, element("label", {}, armed, ` ${group.title}`)));
  } else {
    made.append(element("legend", {}, group.title));
  }
  if (group.note) body.append(element("p", { class: "quiet" }, group.note));
  body.append(...group.fields.map((field) => makeField(field, [...path, field.key])));
  made.append(body);
  return made;
}

/** Arming fills in the figures that are not there; what somebody chose stays. */
function fillIn(group, path) {
  const table = group.table[0];
  for (const { key } of group.fields) {
    const control = byId("fields").querySelector(`[data-path="${CSS.escape(joined([...path, key]))}"]`);
    if (control.value !== "" || control.disabled) continue;
    control.value = String(file.figures[table][key]);
    change([...path, key], control.value);
  }
}

function showFields() {
  const base = ["profiles", chosen()];
  byId("fields").replaceChildren(
    ...PROFILE.map((group) => makeGroup(group, base)),
    makeGroup({ ...RETRY, table: [] }, ["retry"]),
  );
  showFaults();
}

function told(value) {
  if (Array.isArray(value)) return value.length ? value.join(", ") : "none";
  if (typeof value === "boolean") return value ? "on" : "off";
  return value === "" ? "empty" : value;
}

function showDraft() {
  const list = [...draft].map(([key, value]) => {
    const path = key.split("\n");
    return element("li", {}, element("span", {}, `${named(path)} `), element("span", { class: "change" }, `${told(written(path))} → ${told(value)}`));
  });
  const said = [];
  if (!list.length) said.push(element("p", {}, "Nothing is changed. Move a knob, and what follows from it stands here before anything is applied."));
  else said.push(element("ul", { class: "changes" }, ...list));
  if (judged.stale) said.push(element("p", { class: "quiet" }, "Judging."));
  else if (judged.faults.length) said.push(element("p", { class: "fault" }, "Refused, as the launch would refuse it:"), faultList(judged.faults));
  else if (list.length) said.push(element("p", { class: "passed" }, "It would be launched."));
  if (judged.warnings?.length) said.push(element("p", { class: "warning" }, "Warned of:"), faultList(judged.warnings));
  byId("draft").replaceChildren(...said);
  byId("undo").disabled = !list.length;
  byId("apply").disabled = !list.length || Boolean(judged.stale) || judged.faults.length > 0 || !file.may_change || !file.writable;
  byId("apply").hidden = !file.writable;
  byId("copy").disabled = judged.faults.length > 0;
  byId("toml-label").hidden = true;
  showFaults();
}

/** What the server says of a key stands at its field, too. */
function showFaults() {
  if (!judged) return;
  for (const control of byId("fields").querySelectorAll("[data-path]")) {
    const prefix = `${named(control.dataset.path.split("\n")).replace(/^retry: /, "retry.")}: `;
    const fault = judged.faults.find((line) => line.startsWith(prefix));
    if (fault) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
    const place = byId(`${control.id}-fault`);
    if (place) fail(place, fault ? fault.slice(prefix.length) : "");
  }
  setText(byId("sentence"), judged.sentences?.[chosen()] ? `${judged.sentences[chosen()]}.` : "loop detection: nothing is armed.");
}

async function judge() {
  const number = (judging += 1);
  const { ok, answer } = await ask("configuration/judge", { body: { changes: changes() } });
  if (number !== judging) return;
  judged = ok ? answer : { sentences: judged.sentences, warnings: [], faults: answer.faults ?? [answer.error] };
  showDraft();
}

async function apply() {
  setText(byId("applied"), "Applying.");
  const { ok, answer } = await ask("configuration/apply", { body: { changes: changes(), version: file.version } });
  if (!ok) {
    judged = { ...judged, faults: answer.faults ?? [answer.error] };
    showDraft();
    setText(byId("applied"), "Nothing was changed.");
    return;
  }
  take({ may_change: file.may_change, takes_token: file.takes_token, ...answer });
  setText(byId("applied"), `Applied: the next exchange goes by it. The old file is ${answer.kept}.`);
}

async function copy() {
  const { ok, answer } = await ask("configuration/judge", { body: { changes: changes() } });
  if (!ok) return;
  byId("toml-label").hidden = false;
  byId("toml").value = answer.toml;
  byId("toml").select();
  const copied = await navigator.clipboard?.writeText(answer.toml).then(() => true, () => false);
  setText(byId("applied"), copied ? "Copied." : "Select it and copy it.");
}

byId("profile").addEventListener("change", showFields);
byId("apply").addEventListener("click", apply);
byId("copy").addEventListener("click", copy);
byId("undo").addEventListener("click", read);
byId("fields").addEventListener("submit", (event) => event.preventDefault());
byId("token").addEventListener("submit", async (event) => {
  event.preventDefault();
  token.set(new FormData(event.target).get("token"));
  event.target.reset();
  const kept = draft;
  await read();
  draft = kept;
  showFields();
  showDraft();
  if (!file.may_change) setText(byId("applied"), "That is not the admin token.");
});
setUpTrial(() => ({ changes: changes(), profile: chosen() }));
