// The page: joins what the server tells to the parts that show it.

import { ago, make, number, say } from "./charts.js";
import { Fleet, STATES } from "./fleet.js";
import { Happened } from "./timeline.js";
import { Live } from "./live.js";
import { Pools } from "./pools.js";
import { Proxies } from "./proxies.js";
import { Wrong } from "./problems.js";

const at = (id) => document.getElementById(id);
let lostAt = null;

const live = new Live(changed, linked);
const fleet = new Fleet(live, at("zones"), at("fleet-note"), tell);
const pools = new Pools(live, at("pools"));
const happened = new Happened(live, at("lanes"), at("events"));
const proxies = new Proxies(live, at("proxies"), at("proxies-note"));
const wrong = new Wrong(live, at("wrong"), at("wrong-note"), at("wrongs"), tell);

for (const [sign, words] of Object.values(STATES)) at("legend").append(make("span", {}, `${sign} ${words}`));

function changed(what) {
  if (what === null || what.tables.engines) what === null ? fleet.all() : fleet.some(what.tables.engines);
  pools.all();
  if (what === null || what.events.length || live.at % 15 < 1) happened.all();
  if (what === null || what.tables.proxies) proxies.all();
  wrong.all();
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
  // What is read aloud is how many are in, and not the rate of each second.
  say(at("count"), `${rows.length} engines, ${out} not in`);
  at("count").className = out ? "badge bad" : "";
  say(at("rate"), `; ${number(good)} good answers per second; ${Object.keys(live.tables.proxies ?? {}).length} proxies`);
  document.title = out ? `(${out} not in) Switchgear` : "Switchgear";
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
  if ([...choice.options].slice(1).map((option) => option.value).join("\n") !== names.join("\n")) {
    const chosen = choice.value;
    choice.replaceChildren(make("option", { value: "" }, "all"), ...names.map((name) => make("option", { value: name }, name)));
    choice.value = names.includes(chosen) ? chosen : "";
  }
}

function linked(up) {
  lostAt = up ? null : (lostAt ?? (live.heardMs || Date.now()));
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
    const answer = await fetch(`/v1/why?name=${encodeURIComponent(name)}`, { signal: AbortSignal.timeout(10000) });
    const story = await answer.json();
    if (!answer.ok) throw new Error(story.error);
    if (at("story-name").textContent !== name) return; // somebody asked for another meanwhile
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
