// The fields of a profile: a control for each key, what moving it trades, and what is wrong with it.

import { byId, element, fail } from "./dom.js";
import { draft, joined, named, split } from "./draft.js";
import { PROFILE, RETRY } from "./knobs.js";

let unique = 0;

function makeField(field, path, change) {
  unique += 1;
  const id = `field-${unique}`;
  const variable = draft.variableOf(path);
  const value = draft.current(path);
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
    return makeSet(field, path, id, change);
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

function makeSet(field, path, id, change) {
  const variable = draft.variableOf(path);
  const boxes = field.options.map((option) => {
    const box = element("input", { type: "checkbox", value: option, disabled: Boolean(variable) });
    box.checked = draft.current(path).includes(option);
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

function makeGroup(group, base, change) {
  const path = [...base, ...group.table];
  const body = element("div", { class: "body" });
  if (group.note) body.append(element("p", { class: "quiet" }, group.note));
  body.append(...group.fields.map((field) => makeField(field, [...path, field.key], change)));
  const title = group.arms ? makeSwitch(group, path, body, change) : group.title;
  return element("fieldset", { class: "card" }, element("legend", {}, title), body);
}

/** The switch that arms a rule. */
function makeSwitch(group, path, body, change) {
  const key = [...path, group.arms];
  const armed = element("input", { type: "checkbox", role: "switch", id: `arm-${group.table[0]}`, "data-path": joined(key), disabled: Boolean(draft.variableOf(key)) });
  armed.checked = draft.current(key) === true;
  body.dataset.armed = armed.checked;
  armed.addEventListener("input", () => {
    body.dataset.armed = armed.checked;
    change(key, armed.checked);
    if (armed.checked) fillIn(group, path, change);
  });
  return element("label", {}, armed, ` ${group.title}`);
}

/** Arming fills in the figures that are not there; what somebody chose stays. */
function fillIn(group, path, change) {
  for (const { key } of group.fields) {
    const control = byId("fields").querySelector(`[data-path="${CSS.escape(joined([...path, key]))}"]`);
    if (control.value !== "" || control.disabled) continue;
    control.value = String(draft.file.figures[group.table[0]][key]);
    change([...path, key], control.value);
  }
}

/**
 * Show the fields of a profile, and of the retry that all profiles share.
 *
 * @param {(path: string[], value: unknown) => void} change takes what somebody typed.
 */
export function showFields(profile, change) {
  byId("fields").replaceChildren(
    ...PROFILE.map((group) => makeGroup(group, ["profiles", profile], change)),
    makeGroup(RETRY, [], change),
  );
}

/** What the server says of a key stands at its field, too. */
export function showFaults(faults) {
  for (const control of byId("fields").querySelectorAll("[data-path]")) {
    const key = named(split(control.dataset.path));
    // Of a list one value may be at fault, which is named by its place: `steps[0]`.
    const fault = faults.find((line) => line.startsWith(`${key}: `) || line.startsWith(`${key}[`));
    if (fault) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
    const place = byId(`${control.id}-fault`);
    if (place) fail(place, fault ? fault.slice(fault.indexOf(": ", key.length) + 2) : "");
  }
}
