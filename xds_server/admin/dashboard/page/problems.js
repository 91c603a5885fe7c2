// Active problems, worst first; each line opens its explanation.

import { stateOf, STATES } from "./fleet.js";
import { count, keyed, make, number, setText } from "./charts.js";
import { LEVELS } from "./pools.js";

const SHOWN = 6;
const ALONE = 3;

export class Problems {
  constructor(live, root, note, list, onPick) {
    this.live = live;
    this.root = root;
    this.note = note;
    this.list = list;
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) onPick(button.dataset.subject);
    });
  }

  all() {
    const { pools = {}, engines = {}, proxies = {} } = this.live.tables;
    const lines = [...ofPools(pools), ...ofProxies(proxies), ...ofEngines(engines)];
    this.root.hidden = !lines.length;
    setText(this.note, lines.length > SHOWN ? `${SHOWN} of ${lines.length}` : "");
    const shown = lines.slice(0, SHOWN);
    const items = keyed(this.list, shown.map((line) => line.key), () => blank());
    items.forEach((item, i) => fill(item, shown[i]));
  }
}

function* ofPools(pools) {
  for (const [name, row] of Object.entries(pools)) {
    const shed = row.shedPerS > 0 ? `; refusing ${number(row.shedPerS)} requests/s` : "";
    const level = row.level ? `degradation level ${row.level} (${LEVELS[row.level] ?? ""}): ${row.levelReason}` : "";
    if (row.engines && !row.healthy) yield { key: `pool ${name}`, sign: "✕", name: `pool:${name}`, head: name, text: `no engine in rotation${shed}` };
    else if (level || shed) yield { key: `pool ${name}`, sign: "!", name: `pool:${name}`, head: name, text: `${level}${shed}`.replace(/^; /, "") };
  }
}

function* ofProxies(proxies) {
  const refusing = Object.entries(proxies).filter(([, row]) => row.refused.length);
  if (!refusing.length) return;
  const [node, row] = refusing[0];
  const more = refusing.length > 1 ? ` and ${count(refusing.length - 1, "more proxy", "more proxies")}` : "";
  yield { key: "proxies", sign: "✕", name: "", head: `${node}${more}`, text: `refused ${row.refused[0]}` };
}

// Group engines with equal state, pool, zone and verdict: a lost zone is one line.
function ofEngines(engines) {
  const groups = new Map();
  for (const [name, row] of Object.entries(engines)) {
    const state = stateOf(row);
    if (state !== "bad" && state !== "kept") continue;
    const key = `${state} ${row.pool} ${row.zone} ${row.verdict}`;
    groups.has(key) ? groups.get(key).push([name, row]) : groups.set(key, [[name, row]]);
  }
  const lines = [];
  for (const [key, members] of groups) {
    const many = members.length > ALONE;
    for (const [name, row] of many ? members.slice(0, 1) : members) {
      const state = stateOf(row);
      const what = state === "kept" ? "kept in rotation by the capacity floor:" : "ejected:";
      const why = row.reason.replace(/^kept in rotation: /, "");
      const head = many ? `${members.length} engines of ${row.pool}, ${row.zone || "no zone"}` : name;
      const text = many ? `${what} ${row.verdict ?? "unknown"}, e.g. ${name}: ${why}` : `${what} ${why || row.verdict}`;
      lines.push({ key: many ? key : name, sign: STATES[state][0], name, head, text, weight: members.length, out: state === "bad" });
    }
  }
  return lines.sort((a, b) => b.out - a.out || b.weight - a.weight || (a.key < b.key ? -1 : 1));
}

function blank() {
  const button = make("button", { type: "button" });
  return make("li", {}, make("span", { class: "sign", "aria-hidden": "true" }), button, make("b"), make("span"));
}

function fill(item, line) {
  const [sign, button, plain, text] = item.children;
  setText(sign, line.sign);
  // Proxies have no explanation; Envoy's message is the reason.
  button.hidden = !line.name;
  plain.hidden = !!line.name;
  button.dataset.subject = line.name;
  setText(line.name ? button : plain, line.head);
  setText(text, ` ${line.text}`);
}
