// Connects the live data of the server to the parts of the page.

import { ago, count, make, number, setText } from "./charts.js";
import { Fleet, STATES } from "./fleet.js";
import { changeText, Timeline } from "./timeline.js";
import { Live } from "./live.js";
import { Pools } from "./pools.js";
import { Proxies } from "./proxies.js";
import { guideTo, Problems } from "./problems.js";

const at = (id) => document.getElementById(id);
let lostAt = null;

const live = new Live(changed, linked);
const fleet = new Fleet(live, at("zones"), at("fleet-note"), explain);
const pools = new Pools(live, at("pools"), at("pools-note"));
const timeline = new Timeline(live, at("lanes"), at("events"));
const proxies = new Proxies(live, at("proxies"), at("proxies-note"));
const problems = new Problems(live, at("problems"), at("problems-note"), at("problem-list"), explain, showGuide);

for (const [sign, words] of Object.values(STATES)) at("legend").append(make("span", {}, `${sign} ${words}`));

function changed(what) {
  if (what === null || what.tables.engines) what === null ? fleet.all() : fleet.some(what.tables.engines);
  pools.all();
  if (what === null || what.events.length || live.at % 15 < 1) timeline.all();
  if (what === null || what.tables.proxies) proxies.all();
  problems.all();
  if (!document.hidden) {
    fleet.ages();
    fleet.lines();
  }
  summary();
}

function summary() {
  const server = live.tables.server?.server ?? {};
  const rows = Object.values(live.tables.engines ?? {});
  const ejected = rows.filter((row) => row.health === "UNHEALTHY").length;
  const draining = rows.filter((row) => row.health === "DRAINING").length;
  const out = [...(ejected ? [`${ejected} ejected`] : []), ...(draining ? [`${draining} draining`] : [])].join(", ");
  const good = Object.values(live.tables.pools ?? {}).reduce((sum, pool) => sum + (pool.donePerS ?? 0), 0);
  // Screen readers announce the counts (role status), but not the rate, which changes every second.
  setText(at("count"), `${count(rows.length, "engine")}, ${out || "0 ejected"}`);
  at("count").className = out ? "badge bad" : "";
  setText(at("rate"), `; ${number(good)} good answers/s; ${count(Object.keys(live.tables.proxies ?? {}).length, "proxy", "proxies")}`);
  document.title = out ? `(${out}) Switchgear` : "Switchgear";
  const badge = at("policies");
  setText(badge, server.stale ? `policies ${server.policies}, stale` : `policies ${server.policies ?? "?"}`);
  badge.title = server.digest ?? "";
  badge.className = `badge ${server.policies === "accepted" && !server.stale ? "good" : "bad"}`;
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
  document.body.classList.toggle("lost", !up);
  const badge = at("link");
  badge.className = `badge ${up ? "good" : "bad"}`;
  setText(badge, up ? "live" : "no contact");
}

setInterval(() => {
  if (lostAt !== null) setText(at("link"), `no contact, ${ago((Date.now() - lostAt) / 1000)}`);
}, 1000);

function opened(name) {
  const dialog = at("story");
  setText(at("story-name"), name);
  const body = at("story-body");
  body.replaceChildren(make("p", {}, "loading"));
  if (!dialog.open) dialog.showModal();
  return body;
}

async function showGuide(code) {
  const body = opened(code);
  try {
    const answer = await fetch("guide.json", { signal: AbortSignal.timeout(10000) });
    const guide = await answer.json();
    if (at("story-name").textContent === code) body.replaceChildren(...guideTo(code, guide));
  } catch (error) {
    body.replaceChildren(make("p", {}, `no answer: ${error.message}`));
  }
}

async function explain(name) {
  const body = opened(name);
  try {
    const answer = await fetch(`/v1/why?name=${encodeURIComponent(name)}`, { signal: AbortSignal.timeout(10000) });
    const story = await answer.json();
    if (!answer.ok) throw new Error(story.error);
    if (at("story-name").textContent !== name) return; // another subject was chosen meanwhile
    const parts = [make("p", {}, story.now)];
    const list = (title, lines) => lines.length && parts.push(make("h3", {}, title), make("ul", {}, ...lines.map((text) => make("li", {}, text))));
    list("Because", story.because);
    list("Why not", story.why_not);
    list("Policy", story.ruled_by.map((rule) => `${rule.field}: ${rule.value} (${rule.place})`));
    list("Recovers after", story.returns ? [story.returns] : []);
    list("History", story.past.map((event) => `${ago(event.age_s)}: ${changeText(event)}: ${event.evidence}`));
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

pools.follow();
live.connect();
