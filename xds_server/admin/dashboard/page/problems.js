// What is wrong now, in words and worst first, for whoever was just woken: each line leads to its reasons.

import { stateOf, STATES } from "./fleet.js";
import { keyed, make, number, say } from "./charts.js";
import { LEVELS } from "./pools.js";

const SHOWN = 6;
const ALONE = 3;

export class Wrong {
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
    say(this.note, lines.length > SHOWN ? `${lines.length} things; the first ${SHOWN}` : "");
    const shown = lines.slice(0, SHOWN);
    const items = keyed(this.list, shown.map((line) => line.key), () => blank());
    items.forEach((item, i) => fill(item, shown[i]));
  }
}

function* ofPools(pools) {
  for (const [name, row] of Object.entries(pools)) {
    const shed = row.shedPerS > 0 ? `; refuses ${number(row.shedPerS)} requests per second` : "";
    const said = row.level ? `level ${row.level}, ${LEVELS[row.level] ?? ""}: ${row.levelReason}` : "";
    if (row.engines && !row.healthy) yield { key: `pool ${name}`, sign: "✕", name: `pool:${name}`, head: name, text: `no engine is in${shed}` };
    else if (said || shed) yield { key: `pool ${name}`, sign: "!", name: `pool:${name}`, head: name, text: `${said}${shed}`.replace(/^; /, "") };
  }
}

function* ofProxies(proxies) {
  const refusing = Object.entries(proxies).filter(([, row]) => row.refused.length);
  if (!refusing.length) return;
  const [node, row] = refusing[0];
  const more = refusing.length > 1 ? ` and ${refusing.length - 1} more proxies` : "";
  yield { key: "proxies", sign: "✕", name: "", head: `${node}${more}`, text: `refuses ${row.refused[0]}` };
}

// Engines that share a fate are one line: of a zone that is gone nobody wants to read three hundred.
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
      const what = state === "kept" ? "bad, and kept in:" : "out:";
      const why = row.reason.replace(/^kept: /, "");
      const head = many ? `${members.length} engines of ${row.pool}, ${row.zone || "no zone"}` : name;
      const text = many ? `${what} ${row.verdict ?? "unknown"}, such as ${name}: ${why}` : `${what} ${why || row.verdict}`;
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
  say(sign, line.sign);
  // A proxy has no story: its own words are the reason.
  button.hidden = !line.name;
  plain.hidden = !!line.name;
  button.dataset.subject = line.name;
  say(line.name ? button : plain, line.head);
  say(text, ` ${line.text}`);
}
