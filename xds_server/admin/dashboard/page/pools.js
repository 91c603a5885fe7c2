// One card per pool: answers, refusals, and requests in flight compared with slots and admission limit.

import { HISTORY_S } from "./live.js";
import { line, make, number, setText, shape } from "./charts.js";

export const LEVELS = ["normal", "no hedging", "fallback", "shedding", "maintenance"];

export class Pools {
  constructor(live, root) {
    this.live = live;
    this.root = root;
    this.cards = new Map();
  }

  all() {
    const rows = this.live.tables.pools ?? {};
    for (const [name, card] of this.cards) {
      if (name in rows) continue;
      card.remove();
      this.cards.delete(name);
    }
    for (const name of Object.keys(rows).sort()) this.one(name, rows[name]);
  }

  one(name, row) {
    let card = this.cards.get(name);
    if (!card) this.cards.set(name, (card = this.root.appendChild(blank(name))));
    const level = card.querySelector(".badge");
    setText(level, row.level ? `level ${row.level}: ${LEVELS[row.level] ?? ""}` : "normal");
    level.className = `badge ${row.level >= 3 ? "bad" : row.level ? "busy" : "good"}`;
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
    const load = `${number(row.inFlight)} in flight, ${number(row.slots)} slots, limit ${number(row.ceiling)}`;
    card.gauge.setAttribute("aria-label", load);
    setText(card.limits, load + (row.keptIn ? `; ${row.keptIn} kept in rotation by the capacity floor` : "") + (row.shadow.length ? `; shadow: ${row.shadow.join(", ")}` : ""));
    card.limits.title = row.ceilingReason;
  }

  lines() {
    for (const [name, card] of this.cards) {
      const ok = this.live.series(`pool ${name} ok`);
      const shed = this.live.series(`pool ${name} shed`);
      const top = Math.max(1, ...ok.map((point) => point[1]), ...shed.map((point) => point[1]));
      card.querySelector(".ok").setAttribute("d", line(ok, this.live.at, HISTORY_S, top));
      card.querySelector(".shed").setAttribute("d", line(shed, this.live.at, HISTORY_S, top));
    }
  }
}

function blank(name) {
  const card = make("article", { class: "card" });
  card.append(make("header", {}, make("h3", {}, name), make("span", { class: "badge" })));
  const list = make("dl", { class: "figures" });
  card.figures = {};
  for (const term of ["good /s", "refused /s", "errors", "p99", "engines", "retries /s", "pressure", "hedging"]) {
    const value = make("dd");
    card.figures[term] = value;
    list.append(make("div", {}, make("dt", {}, term), value));
  }
  const svg = shape("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img" });
  svg.setAttribute("aria-label", `${name}: good answers (solid) and refusals (dashed), last two minutes`);
  svg.append(shape("path", { class: "ok" }), shape("path", { class: "shed" }));
  card.gauge = make("div", { class: "gauge", role: "img" }, make("i"), make("b"));
  card.limits = make("p", { class: "hint" });
  card.append(list, svg, card.gauge, card.limits);
  return card;
}
