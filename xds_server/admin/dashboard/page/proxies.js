// Proxies: sync state, and Envoy's message for each refused resource. Proxies out of sync come first.

import { keyed, make, number, setText } from "./charts.js";

const SHOWN = 200;

const off = (row) => Object.entries(row.types).filter(([, state]) => state !== "SYNCED");

export class Proxies {
  constructor(live, body, note) {
    this.live = live;
    this.body = body;
    this.note = note;
  }

  all() {
    const rows = Object.entries(this.live.tables.proxies ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
    const bad = rows.filter(([, row]) => off(row).length);
    const good = rows.filter(([, row]) => !off(row).length);
    const most = rows.length > SHOWN ? `; ${SHOWN} shown` : "";
    if (!rows.length) setText(this.note, "none connected");
    else setText(this.note, (bad.length ? `${bad.length} of ${rows.length} not in sync` : `${rows.length}, all in sync`) + most);
    const shown = [...bad, ...good].slice(0, SHOWN);
    const lines = keyed(this.body, shown.map(([node]) => node), blank);
    lines.forEach((line, i) => fill(line, shown[i][1]));
  }
}

function blank(node) {
  const sync = make("td", {}, make("span", { class: "badge" }), make("div", {}));
  const figures = [0, 1, 2].map(() => make("td", { class: "n" }));
  return make("tr", {}, make("th", { class: "id", scope: "row" }, node), make("td"), make("td"), sync, ...figures);
}

function fill(line, row) {
  const [, zone, role, sync, ...figures] = line.children;
  const states = off(row);
  const [badge, refusals] = sync.children;
  setText(zone, row.zone);
  setText(role, row.role);
  setText(badge, states.length ? states.map(([type, state]) => `${type} ${state}`).join(", ") : "✓ all");
  badge.className = `badge ${states.length ? "bad" : "good"}`;
  keyed(refusals, [...new Set(row.refused)], (text) => make("p", { class: "hint" }, text));
  [row.askedPerS, row.shedPerS, row.inFlight].forEach((value, i) => setText(figures[i], number(value)));
}
