// The draft: what the server says of the file, and what was typed over it.

const SEPARATOR = "\n"; // of a key's names, none of which has it

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** A key's path as one text, the name of its control. */
export const joined = (path) => path.join(SEPARATOR);
export const split = (key) => key.split(SEPARATOR);

/** A key's path as the server's refusals name it. */
export const named = ([table, profile, ...keys]) =>
  table === "retry" ? `retry.${profile}` : `profile \`${profile}\`: ${keys.join(".")}`;

export const draft = {
  file: null,
  typed: new Map(),

  /** Begin anew from what the server says of the file. */
  begin(file) {
    this.file = file;
    this.typed = new Map();
  },

  /** What the file says of a key, as a field says it. */
  written(path) {
    const value = path.reduce((table, key) => table?.[key], this.file);
    if (typeof value === "boolean" || Array.isArray(value)) return value;
    return value === null || value === undefined ? "" : String(value);
  },

  current(path) {
    return this.typed.get(joined(path)) ?? this.written(path);
  },

  change(path, value) {
    if (same(value, this.written(path))) this.typed.delete(joined(path));
    else this.typed.set(joined(path), value);
  },

  /** The changes as the server reads them. */
  changes() {
    return [...this.typed].map(([key, value]) => ({ path: split(key), value }));
  },

  /** The environment's variable that stands over a key. */
  variableOf(path) {
    return this.file.variables.find((each) => same(each.path, path))?.variable;
  },
};
