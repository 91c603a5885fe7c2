// The page: joins what the server tells to the parts that show it.

import { ago, make, number } from "./drawing.js";
import { Fleet, STATES } from "./fleet.js";
import { Happened } from "./happened.js";
import { Live } from "./live.js";
import { Pools } from "./pools.js";

const at = (id) => document.getElementById(id);
let lostAt = null;

const live = new Live(changed, linked);
const fleet = new Fleet(live, at("zones"), at("fleet-note"), tell);
const pools = new Pools(live, at("pools"));
const happened = new Happened(live, at("lanes"), at("events"));

for (const [sign, words] of Object.values(STATES)) at("legend").append(make("span", {}, `${sign} ${words}`));

function changed(what) {
  if (what === null || what.tables.engines) what === null ? fleet.all() : fleet.some(what.tables.engines);
  pools.all();
  if (what === null || what.events.length || live.at % 15 < 1) happened.all();
  if (what === null || what.tables.proxies) proxies();
  if (!document.hidden) {
    fleet.lines();
    pools.lines();
  }
  summary();
}

function summary() {
  const server = live.tables.server?.server ?? {};
  const rows = Object.values(live.tables.engines ?? {});
  const out = rows.filter((row) => row.health !== "HEALTHY").length;
  const good = Object.values(live.tables.pools ?? {}).reduce((sum, pool) => sum + (pool.donePerS ?? 0), 0);
  say(at("sum"), `${rows.length} engines, ${out} not in; ${number(good)} good answers per second; ${Object.keys(live.tables.proxies ?? {}).length} proxies`);
  const badge = at("policies");
  say(badge, server.stale ? `policies ${server.policies}, stale` : `policies ${server.policies ?? "?"} ${server.digest ?? ""}`);
  badge.className = `badge ${server.policies === "accepted" && !server.stale ? "good" : "bad"}`;
  const troubles = [...(server.problems ?? [])];
  troubles.push(...(server.troubles ?? []));
  if (server.held) troubles.push(`held back: ${server.held}`);
  if (server.lost?.length) troubles.push(`out of touch: ${server.lost.join(", ")}; what was last known is served`);
  if (server.ready === false) troubles.push(server.reason);
  at("alert").hidden = !troubles.length;
  say(at("alert"), troubles.join("\n"));
  const names = Object.keys(live.tables.pools ?? {}).sort();
  const choice = at("pool");
  if (choice.options.length !== names.length + 1) {
    const chosen = choice.value;
    choice.replaceChildren(make("option", { value: "" }, "all"), ...names.map((name) => make("option", { value: name }, name)));
    choice.value = names.includes(chosen) ? chosen : "";
  }
}

// Only where it is different: what is read aloud should not be said again each second.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function proxies() {
  const rows = Object.entries(live.tables.proxies ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  const bad = rows.filter(([, row]) => Object.values(row.types).some((state) => state !== "SYNCED"));
  say(at("proxies-note"), bad.length ? `${bad.length} of ${rows.length} not in sync` : `${rows.length}, all in sync`);
  const shown = [...bad, ...rows.filter((row) => !bad.includes(row))].slice(0, 200);
  at("proxies").replaceChildren(
    ...shown.map(([node, row]) => {
      const off = Object.entries(row.types).filter(([, state]) => state !== "SYNCED");
      const words = off.length ? off.map(([type, state]) => `${type} ${state}`).join(", ") : "✓ all";
      const cell = make("td", {}, make("span", { class: `badge ${off.length ? "bad" : "good"}` }, words));
      for (const text of row.refused) cell.append(make("p", { class: "hint" }, text));
      const figures = [row.askedPerS, row.shedPerS, row.inFlight].map((value) => make("td", { class: "n" }, number(value)));
      return make("tr", {}, make("td", { class: "id" }, node), make("td", {}, row.zone), make("td", {}, row.role), cell, ...figures);
    }),
  );
}

function linked(up) {
  lostAt = up ? null : (lostAt ?? Date.now());
  const badge = at("link");
  badge.className = `badge ${up ? "good" : "bad"}`;
  say(badge, up ? "live" : "no contact");
}

setInterval(() => {
  if (lostAt !== null) say(at("link"), `no contact, ${ago((Date.now() - lostAt) / 1000)}`);
}, 1000);

async function tell(name) {
  const dialog = at("story");
  say(at("story-name"), name);
  const body = at("story-body");
  body.replaceChildren(make("p", {}, "asking"));
  if (!dialog.open) dialog.showModal();
  try {
    const answer = await fetch(`/v1/why?name=${encodeURIComponent(name)}`);
    const story = await answer.json();
    if (!answer.ok) throw new Error(story.error);
    const parts = [make("p", {}, story.now)];
    const list = (title, lines) => lines.length && parts.push(make("h3", {}, title), make("ul", {}, ...lines.map((text) => make("li", {}, text))));
    list("Because", story.because);
    list("Why not otherwise", story.why_not);
    list("Ruled by", story.ruled_by.map((rule) => `${rule.field}: ${rule.value} (${rule.place})`));
    list("What would change it", story.returns ? [story.returns] : []);
    list("Before", story.past.map((event) => `${ago(event.age_s)}: ${event.kind} ${event.before || "–"} → ${event.after}: ${event.evidence}`));
    body.replaceChildren(...parts);
  } catch (error) {
    body.replaceChildren(make("p", {}, `no answer: ${error.message}`));
  }
}

at("tools").addEventListener("submit", (event) => event.preventDefault());
at("tools").addEventListener("input", () =>
  fleet.refilter({ text: at("find").value.trim().toLowerCase(), pool: at("pool").value, only: at("only").value }),
);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /INPUT|SELECT/.test(event.target.tagName)) return;
  event.preventDefault();
  at("find").focus();
});

live.connect();
