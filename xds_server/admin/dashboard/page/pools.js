// One card per pool: its figures, its last 15 minutes as the server recorded them, and its calls from zone to zone.

import { ago, keyed, make, number, setText, shape, trace } from "./charts.js";

export const LEVELS = ["normal", "no hedging", "fallback", "shedding", "maintenance"];

// Without a fallback, level 2 is level 1.
export const levelText = (row) => (row.level === 2 && !row.fallback ? LEVELS[1] : LEVELS[row.level]) ?? "";

const POLL_MS = 10000;
const FIGURES = ["good /s", "refused /s", "errors", "p99", "engines", "retries /s", "pressure", "hedging"];
// Title, unit, and lines: name, field of a point, and style.
const TRENDS = [
  ["Calls /s", "", [["good", "good_per_s", "good"], ["refused", "refused_per_s", "warn"], ["failed tries", "failed_per_s", "bad"]]],
  ["Total time", " s", [["p50", "total_p50_s", "low"], ["p95", "total_p95_s", "mid"], ["p99", "total_p99_s", "high"]]],
  ["Time to first byte", " s", [["p50", "first_byte_p50_s", "low"], ["p95", "first_byte_p95_s", "mid"], ["p99", "first_byte_p99_s", "high"]]],
  ["Load", "", [["in flight", "in_flight", "low"], ["limit", "ceiling", "mid"]]],
];

export class Pools {
  constructor(live, root, note) {
    this.live = live;
    this.root = root;
    this.note = note;
    this.cards = new Map();
    this.history = null;
  }

  // Reads the history now and every ten seconds; the server keeps it, so a reload loses nothing.
  async follow() {
    try {
      const answer = await fetch("/v1/pool-history", { signal: AbortSignal.timeout(POLL_MS) });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      this.history = await answer.json();
      this.trends();
    } catch (error) {
      setText(this.note, `no history: ${error.message}`);
    }
    setTimeout(() => this.follow(), POLL_MS);
  }

  all() {
    const rows = this.live.tables.pools ?? {};
    const fresh = Object.keys(rows).some((name) => !this.cards.has(name));
    for (const [name, card] of this.cards) {
      if (name in rows) continue;
      card.remove();
      this.cards.delete(name);
    }
    for (const name of Object.keys(rows).sort()) this.one(name, rows[name]);
    if (fresh) this.trends();
  }

  one(name, row) {
    let card = this.cards.get(name);
    if (!card) this.cards.set(name, (card = this.root.appendChild(blank(name))));
    const level = card.querySelector(".badge");
    setText(level, row.level ? `level ${row.level}: ${levelText(row)}` : "normal");
    level.className = `badge ${row.level >= 3 ? "bad" : row.level ? "warn" : "good"}`;
    level.title = row.levelReason;
    const figures = {
      "good /s": number(row.donePerS),
      "refused /s": number(row.shedPerS),
      "errors": row.errorPercent === null ? "–" : `${number(row.errorPercent)} %`,
      "p99": row.answerP99S === null ? "–" : `${number(row.answerP99S)} s`,
      "engines": `${row.healthy}/${row.engines}`,
      "retries /s": number(row.retriesPerS),
      "pressure": row.pressure === null ? "–" : `${Math.round(100 * row.pressure)} %`,
      "hedging": row.hedging ? "on" : "off",
    };
    for (const [term, text] of Object.entries(figures)) setText(card.figures[term], text);
    const top = Math.max(row.ceiling ?? 0, row.slots ?? 0, row.inFlight ?? 0, 1);
    card.gauge.querySelector("i").style.setProperty("--v", (100 * (row.inFlight ?? 0)) / top);
    card.gauge.querySelector("b").style.setProperty("--v", (100 * Math.min(row.slots ?? 0, top)) / top);
    const load = (row.stage ? `stage ${row.stage}: ` : "") + `${number(row.inFlight)} in flight, ${number(row.slots)} slots, limit ${number(row.ceiling)}`;
    card.gauge.setAttribute("aria-label", load);
    setText(card.limits, load + (row.keptIn ? `; ${row.keptIn} kept in rotation by the capacity floor` : "") + (row.keysAwayPercent ? `; ${number(row.keysAwayPercent)} % of the keys with another engine` : "") + (row.prefilledPercent === null ? "" : `; ${number(row.prefilledPercent)} % of requests prefilled by other engines`) + (row.shadow.length ? `; shadow: ${row.shadow.join(", ")}` : ""));
    card.limits.title = row.ceilingReason;
    const adapters = Object.entries(row.adapters);
    card.adapters.hidden = !adapters.length;
    setText(card.adapters, `adapters: ${adapters.map(([adapter, engines]) => `${adapter} on ${engines} of ${row.healthy}`).join(", ")}`);
    this.flow(name, card);
  }

  trends() {
    const { history } = this;
    if (!history || !this.cards.size) return;
    const recorded = this.live.at - history.since_unix_s;
    const minutes = Math.round(history.kept_s / 60);
    setText(this.note, recorded < history.kept_s
      ? `last ${minutes} minutes; this server started to record ${ago(recorded)}`
      : `last ${minutes} minutes, as this server recorded them`);
    const points = new Map(history.pools.map((one) => [one.pool, one.points]));
    for (const [name, card] of this.cards) {
      const found = points.get(name) ?? [];
      const to = Math.max(this.live.at, found.at(-1)?.at_unix_s ?? 0);
      for (const one of card.trends) one.draw(found, to - history.kept_s, to, 2.5 * history.interval_s);
    }
  }

  // Calls per second of the last minute: a row per zone of callers, a column per zone of engines.
  flow(name, card) {
    const rows = Object.values(this.live.tables.zones ?? {}).filter((row) => row.pool === name && Object.keys(row.callsPerS).length);
    const to = [...new Set(rows.flatMap((row) => Object.keys(row.callsPerS)))].sort();
    card.flow.hidden = rows.length < 2 && to.length < 2;
    if (card.flow.hidden) return;
    const zone = (text) => text || "no zone";
    const head = keyed(card.flow.tHead.rows[0], ["", ...to], (key) => (key ? make("th", { scope: "col" }) : make("td")));
    to.forEach((text, i) => setText(head[i + 1], `to ${zone(text)}`));
    const lines = keyed(card.flow.tBodies[0], rows.map((row) => row.zone).sort(), () => make("tr", {}, make("th", { scope: "row" })));
    for (const line of lines) {
      const row = rows.find((one) => one.zone === line.dataset.key);
      const whole = Object.values(row.callsPerS).reduce((sum, rate) => sum + rate, 0);
      setText(line.cells[0], `from ${zone(row.zone)}`);
      while (line.cells.length > to.length + 1) line.lastChild.remove();
      while (line.cells.length < to.length + 1) line.append(make("td"));
      to.forEach((text, i) => {
        const cell = line.cells[i + 1];
        const percent = whole ? (100 * (row.callsPerS[text] ?? 0)) / whole : 0;
        setText(cell, percent ? `${number(row.callsPerS[text])} (${Math.round(percent)} %)` : "–");
        cell.title = `zone weights: ${number(row.sends[text] ?? 0)} %`;
        cell.style.setProperty("--v", percent);
      });
    }
  }
}

class Trend {
  constructor(pool, [title, unit, lines]) {
    this.name = `${pool}: ${title}`;
    this.unit = unit;
    this.svg = shape("svg", { viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img" });
    this.lines = lines.map(([name, field, style]) => {
      const path = this.svg.appendChild(shape("path", { class: style }));
      const sample = shape("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" });
      sample.append(shape("path", { class: style, d: "M0 5h20" }));
      const value = make("span");
      return { name, field, path, value, key: make("span", { class: "key" }, sample, value) };
    });
    this.top = make("span");
    this.figure = make("figure", { class: "trend" },
      make("figcaption", {}, title, ...this.lines.map((one) => one.key)),
      this.svg,
      make("div", { class: "axis" }, make("span", {}, "15 min ago"), this.top, make("span", {}, "now")));
  }

  draw(points, from, to, gapS) {
    const values = this.lines.flatMap(({ field }) => points.map((point) => point[field])).filter((value) => value !== null);
    const top = Math.max(0, ...values);
    const peak = values.length ? `peak ${number(top)}${this.unit}` : "no data";
    const texts = [];
    for (const { name, field, path, value } of this.lines) {
      const now = points.at(-1)?.[field];
      const text = `${name} ${number(now)}${now === null || now === undefined ? "" : this.unit}`;
      texts.push(text);
      setText(value, text);
      path.setAttribute("d", trace(points.map((point) => [point.at_unix_s, point[field]]), from, to, top || 1, gapS));
    }
    setText(this.top, peak);
    this.svg.setAttribute("aria-label", `${this.name}, last 15 minutes: ${peak}; now ${texts.join(", ")}`);
  }
}

function blank(name) {
  const card = make("article", { class: "card" });
  card.append(make("header", {}, make("h3", {}, name), make("span", { class: "badge" })));
  const list = make("dl", { class: "figures" });
  card.figures = {};
  for (const term of FIGURES) {
    const value = make("dd");
    card.figures[term] = value;
    list.append(make("div", {}, make("dt", {}, term), value));
  }
  card.trends = TRENDS.map((trend) => new Trend(name, trend));
  card.gauge = make("div", { class: "gauge", role: "img" }, make("i"), make("b"));
  card.limits = make("p", { class: "hint" });
  card.adapters = make("p", { class: "hint", hidden: "" });
  card.flow = make("table", { class: "flow", hidden: "" },
    make("caption", {}, "Calls /s from zone to zone, last minute"),
    make("thead", {}, make("tr")), make("tbody"));
  card.append(list, make("div", { class: "trends" }, ...card.trends.map((one) => one.figure)), card.gauge, card.limits, card.adapters, card.flow);
  return card;
}
