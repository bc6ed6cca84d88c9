// Elements, figures and requests. Every text becomes a text node, never markup.

import { inFull } from "./curve.js";

const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const cents = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });

export const byId = (id) => document.getElementById(id);

/** Make an element; what is not a node among its content becomes text. */
export function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...content.map((part) => (part instanceof Node ? part : String(part))));
  return made;
}

/** A cell of a table that stands as a card where there is no room for columns. */
export function cell(label, className, ...content) {
  return element("td", { role: "cell", class: className, "data-label": label }, ...content);
}

export function row(...cells) {
  return element("tr", { role: "row" }, ...cells);
}

/** Set a text only where it differs, so that what was selected stays so. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const shown = new WeakMap();

/** Make the content of a node anew where what was told has changed: what somebody reads stays. */
export function renew(node, told, make) {
  const text = JSON.stringify(told);
  if (shown.get(node) === text) return;
  shown.set(node, text);
  node.replaceChildren(...make());
}

export function tile(term, figure, note) {
  const made = element("div", {}, element("dt", {}, term), element("dd", {}, figure));
  if (note) made.append(element("dd", { class: "note" }, note));
  return made;
}

/** US dollars: cents, and of less than ten cents two digits that count. */
export function usd(amount) {
  if (amount === 0) return "$0";
  return `$${(Math.abs(amount) < 0.1 ? cents : money).format(amount)}`;
}

export function time(seconds) {
  const at = new Date(seconds * 1000);
  const today = new Date().toDateString() === at.toDateString();
  return today ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}

export function age(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${inFull(seconds / length)} ${unit}`;
  }
  return `${inFull(Math.max(0, seconds))} s`;
}

export function fail(node, message) {
  node.hidden = !message;
  setText(node, message || "");
}

const TOKEN = "loopguard-admin-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
};

/** Ask the listener; the answer's status and its JSON. */
export async function ask(path, { body, form } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    const response = await fetch(path, {
      method: body === undefined && form === undefined ? "GET" : "POST",
      headers,
      body: form ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
    const answer = await response.json().catch(() => ({ error: `it answered ${response.status}` }));
    return { ok: response.ok, status: response.status, answer };
  } catch {
    return { ok: false, status: 0, answer: { error: "loopguard does not answer" } };
  }
}
