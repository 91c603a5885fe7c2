// Fleet map: one button per engine, grouped by zone. To stay smooth with a thousand engines, it updates only changed
// values, and draws large fleets small, without sparklines.

import { HISTORY_S } from "./live.js";
import { ago, count, line, make, number, setText, shape } from "./charts.js";

const DENSE = 160;

export const STATES = {
  good: ["●", "in rotation"],
  busy: ["◐", "all slots in use"],
  kept: ["▲", "unhealthy, kept in rotation (capacity floor)"],
  trial: ["◔", "on trial"],
  drain: ["▽", "draining"],
  bad: ["✕", "ejected"],
  none: ["○", "no report, or an old one"],
};

export function stateOf(row) {
  if (row.health === "UNHEALTHY") return "bad";
  if (row.health === "DRAINING") return "drain";
  if (row.floor) return "kept";
  if (row.trafficPercent < 100) return "trial";
  if (row.verdict === null || row.heardAt !== null) return "none";
  return row.verdict === "busy" ? "busy" : "good";
}

// A full engine works as it should: no warning colour.
const CLASS = { good: "s-good", busy: "s-good", kept: "s-bad", trial: "s-warn", drain: "s-drain", bad: "s-bad", none: "" };

export class Fleet {
  constructor(live, root, note, onPick) {
    this.live = live;
    this.root = root;
    this.note = note;
    this.cells = new Map();
    this.maps = new Map();
    this.filter = { text: "", pool: "", only: "" };
    root.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) onPick(cell.dataset.name);
    });
    root.addEventListener("keydown", (event) => this.move(event));
    root.addEventListener("focusin", (event) => this.reach(event.target.closest(".cell")));
  }

  all() {
    for (const name of this.cells.keys()) if (!(name in (this.live.tables.engines ?? {}))) this.drop(name);
    for (const name of Object.keys(this.live.tables.engines ?? {})) this.one(name);
    this.tidy();
  }

  some(rows) {
    for (const [name, row] of Object.entries(rows)) row === null ? this.drop(name) : this.one(name);
    this.tidy();
  }

  shown(name, row) {
    const { text, pool, only } = this.filter;
    if (pool && row.pool !== pool) return false;
    if (only === "trouble" && ["good", "busy"].includes(stateOf(row))) return false;
    return !text || `${name} ${row.zone} ${row.reason} ${row.verdict} ${row.standing}`.toLowerCase().includes(text);
  }

  one(name) {
    const row = this.live.tables.engines[name];
    const cell = this.cells.get(name) ?? this.blank(name);
    const zone = row.zone || "no zone";
    if (cell.parentNode !== this.map(zone)) this.map(zone).append(cell);
    const state = stateOf(row);
    const [sign, words] = STATES[state];
    const look = `cell ${CLASS[state]}`;
    if (cell.className !== look) cell.className = look;
    cell.hidden = !this.shown(name, row);
    setText(cell.parts.sign, sign);
    setText(cell.parts.name, row.engine);
    const load = row.slots ? `${number(row.inFlight)}/${number(row.slots)}` : number(row.inFlight);
    const share = row.sharePercent === null ? "" : `, ${number(row.sharePercent, 2)} %`;
    setText(cell.parts.what, `${row.verdict ?? "?"} ${load}${share}`);
    cell.parts.heardAt = row.heardAt;
    const parts = [];
    if (row.kvPercent !== null) parts.push(`KV ${row.kvPercent} %`);
    if (row.gpuPercent !== null) parts.push(`GPU ${row.gpuPercent} %`);
    if (row.heardAt === null) setText(cell.parts.share, parts.join(" "));
    else this.age(cell);
    const full = String(row.slots ? Math.min(1, (row.inFlight ?? 0) / row.slots) : 0);
    if (cell.full !== full) cell.parts.load.style.transform = `scaleX(${(cell.full = full)})`;
    const label = `${name}: ${words}; ${row.reason || row.verdict || ""}; ${load} in flight`;
    if (cell.getAttribute("aria-label") !== label) cell.setAttribute("aria-label", label);
    if (cell.title !== row.reason) cell.title = row.reason;
  }

  // An old report shows its age; its figures are gone.
  age(cell) {
    setText(cell.parts.share, `report ${ago(this.live.at - cell.parts.heardAt)}`);
  }

  ages() {
    for (const cell of this.cells.values()) if (cell.parts.heardAt !== null) this.age(cell);
  }

  blank(name) {
    const cell = make("button", { class: "cell", type: "button", tabindex: "-1" });
    cell.dataset.name = name;
    const path = shape("path");
    const svg = shape("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(path);
    const sign = make("span", { class: "sign", "aria-hidden": "true" });
    const [engine, what, share] = ["more name", "more what", "more share"].map((of) => make("span", { class: of }));
    const load = make("i", { class: "load" });
    cell.append(make("span", { class: "head" }, sign, engine), what, share, load, svg);
    cell.parts = { sign, name: engine, what, share, load, path };
    this.cells.set(name, cell);
    return cell;
  }

  // Sparklines of all engines move each second; draw them only when cells are large enough.
  lines() {
    if (this.dense) return;
    for (const [name, cell] of this.cells) {
      if (cell.hidden) continue;
      const points = this.live.series(`engine ${name}`);
      const top = Math.max(this.live.tables.engines[name]?.slots ?? 0, ...points.map((point) => point[1]), 1);
      cell.parts.path.setAttribute("d", line(points, this.live.at, HISTORY_S, top));
    }
  }

  map(zone) {
    let found = this.maps.get(zone);
    if (!found) {
      const title = make("h3", {}, zone);
      found = make("div", { class: "map", role: "group", "aria-label": `zone ${zone}` });
      found.zoneTitle = title;
      this.maps.set(zone, found);
      const ordered = [...this.maps.keys()].sort();
      const block = make("div", { class: "zone" }, title, found);
      const next = this.maps.get(ordered[ordered.indexOf(zone) + 1]);
      this.root.insertBefore(block, next ? next.parentNode : null);
    }
    return found;
  }

  drop(name) {
    this.cells.get(name)?.remove();
    this.cells.delete(name);
  }

  tidy() {
    const dense = this.cells.size > DENSE;
    if (dense !== this.dense) this.root.classList.toggle("dense", (this.dense = dense));
    let shown = 0;
    for (const [zone, map] of this.maps) {
      const here = [...map.children];
      if (!here.length) {
        map.parentNode.remove();
        this.maps.delete(zone);
        continue;
      }
      const visible = here.filter((cell) => !cell.hidden);
      shown += visible.length;
      map.parentNode.hidden = !visible.length;
      const zones = Object.values(this.live.tables.zones ?? {}).filter((row) => (row.zone || "no zone") === zone);
      const inRotation = zones.reduce((sum, row) => sum + row.healthy, 0);
      setText(map.zoneTitle, `${zone}: ${inRotation} of ${here.length} in rotation`);
    }
    setText(this.note, shown === this.cells.size ? count(shown, "engine") : `${shown} of ${count(this.cells.size, "engine")}`);
    if (!this.root.querySelector('.cell[tabindex="0"]:not([hidden])')) this.reach(this.root.querySelector(".cell:not([hidden])"));
  }

  refilter(filter) {
    this.filter = filter;
    for (const [name, cell] of this.cells) cell.hidden = !this.shown(name, this.live.tables.engines[name]);
    this.tidy();
  }

  // One engine is in the tab order; arrow keys move from there.
  reach(cell) {
    if (!cell) return;
    for (const other of this.root.querySelectorAll('.cell[tabindex="0"]')) other.tabIndex = -1;
    cell.tabIndex = 0;
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "down", ArrowUp: "up", Home: "first", End: "last" }[event.key];
    const at = event.target.closest(".cell");
    if (step === undefined || !at) return;
    const cells = [...this.root.querySelectorAll(".cell:not([hidden])")];
    let next = null;
    if (step === "first") next = cells[0];
    else if (step === "last") next = cells.at(-1);
    else if (typeof step === "number") next = cells[cells.indexOf(at) + step];
    else next = vertical(at, cells, step === "down");
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }
}

function vertical(at, cells, down) {
  const from = at.getBoundingClientRect();
  let best = null;
  let least = Infinity;
  for (const cell of cells) {
    const box = cell.getBoundingClientRect();
    const rows = down ? box.top - from.top : from.top - box.top;
    if (rows < 2) continue;
    const far = rows * 4 + Math.abs(box.left - from.left);
    if (far < least) [best, least] = [cell, far];
  }
  return best;
}
