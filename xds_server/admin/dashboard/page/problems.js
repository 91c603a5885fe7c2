// Conditions of the server, worst first. A subject opens its explanation, a code its meaning, fix and runbook.

import { keyed, lasting, make, setText } from "./charts.js";

const SHOWN = 8;
const SIGNS = { critical: "✕", warning: "!", info: "i" };

export class Problems {
  constructor(live, root, note, list, onPick, onCode) {
    this.live = live;
    this.root = root;
    this.note = note;
    this.list = list;
    this.every = false;
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.more) this.expand();
      else if (button.dataset.code) onCode(button.dataset.code);
      else onPick(button.dataset.subject);
    });
  }

  expand() {
    this.every = !this.every;
    this.all();
  }

  all() {
    const rows = Object.entries(this.live.tables.conditions ?? {}).sort(([a, one], [b, other]) => one.rank - other.rank || (a < b ? -1 : 1));
    this.root.hidden = !rows.length;
    this.root.classList.toggle("critical", rows.some(([, row]) => row.severity === "critical"));
    setText(this.note, summary(rows.map(([, row]) => row.severity)));
    const shown = this.every ? rows : rows.slice(0, SHOWN);
    const keys = shown.map(([key]) => key);
    if (rows.length > SHOWN) keys.push("more");
    const items = keyed(this.list, keys, blank);
    shown.forEach(([, row], i) => fill(items[i], row, this.live.at));
    if (rows.length > SHOWN) setText(items.at(-1).firstChild, this.every ? "show fewer" : `show ${rows.length - SHOWN} more`);
  }
}

function summary(severities) {
  const counts = Object.keys(SIGNS).map((severity) => [severity, severities.filter((one) => one === severity).length]);
  return counts.filter(([, number]) => number).map(([severity, number]) => `${number} ${severity}`).join(", ");
}

function blank(key) {
  if (key === "more") return make("li", {}, make("button", { type: "button", "data-more": "1" }));
  const sign = make("span", { class: "sign", "aria-hidden": "true" });
  const code = make("button", { type: "button", class: "code" });
  return make("li", {}, sign, code, make("span", { class: "word" }), make("button", { type: "button" }), make("b"), make("span"), make("small"));
}

function fill(item, row, at) {
  const [sign, code, word, button, plain, text, age] = item.children;
  item.className = row.severity;
  setText(sign, SIGNS[row.severity] ?? "✕");
  setText(code, row.code);
  code.dataset.code = row.code;
  code.title = `${row.code}: meaning, fix and runbook`;
  setText(word, ` ${row.severity} `);
  // What has no explanation of its own is plain text.
  button.hidden = !row.name;
  plain.hidden = !!row.name;
  button.dataset.subject = row.name;
  button.title = "why";
  setText(row.name ? button : plain, row.subject);
  setText(text, `: ${row.sentence}. ${row.fix}`);
  setText(age, row.since === null ? "" : ` ${lasting(at - row.since)}`);
}

// The meaning, fix and runbook of one code, as elements.
export function guideTo(code, guide) {
  const found = guide.codes[code];
  if (!found) return [make("p", {}, `unknown code ${code}`)];
  const parts = [make("p", {}, `${found.title} (${found.severity}). ${found.meaning}`), make("p", {}, `Fix: ${found.fix}`)];
  const page = guide.runbooks[found.runbook];
  if (page) parts.push(make("h3", {}, `Runbook ${found.runbook}`), make("pre", { class: "runbook" }, page));
  return parts;
}
