// One request per half second while the page is visible; parts are made once and then changed, so focus stays.
const EVERY_MS = 500;
const at = (id) => document.getElementById(id);
let sliding = false;

function made(tag, className, text) {
  const one = document.createElement(tag);
  if (className) one.className = className;
  if (text !== undefined) one.textContent = text;
  return one;
}

function write(one, text) {
  if (one.textContent !== text) one.textContent = text;
}

async function order(path, body) {
  let refusal = "";
  try {
    const answer = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    if (!answer.ok) refusal = await answer.text();
  } catch {
    refusal = "the lab does not answer";
  }
  at("refused").hidden = !refusal;
  write(at("refused"), refusal);
  await look();
}

const STATES = {
  HEALTHY: ["good", "\u2713 in rotation"],
  DEGRADED: ["good", "\u2713 in rotation"],
  UNHEALTHY: ["bad", "\u2715 ejected"],
  DRAINING: ["drain", "\u2193 draining"],
};

function stateOf(engine) {
  if (engine.floor) return ["bad", "! unhealthy, kept in rotation"];
  return STATES[engine.health] || ["none", "? unknown"];
}

function reasonOf(engine) {
  // A fault of `switchgear-chaos inject` may have no button to show it.
  const fault = engine.fault && !engine.buttons.includes(engine.fault) ? `Fault: ${engine.fault}. ` : "";
  if (engine.health !== "HEALTHY" && engine.reason) return fault + engine.reason;
  return fault + (engine.verdict ? `Last report: ${engine.verdict}` : "");
}

function engineRow(engine) {
  const row = made("li", "engine");
  row.dataset.name = engine.name;
  const head = made("div", "head");
  head.append(made("span", "id", engine.name), made("span", "badge"), made("small", "load"));
  const buttons = made("div", "buttons");
  buttons.setAttribute("role", "group");
  buttons.setAttribute("aria-label", `Faults of ${engine.name}`);
  for (const fault of engine.buttons) {
    const button = made("button", "", fault);
    button.type = "button";
    button.dataset.fault = fault;
    button.addEventListener("click", () => order("v1/page/fault", { engine: engine.name, fault }));
    buttons.append(button);
  }
  const heal = made("button", "heal", "heal");
  heal.type = "button";
  heal.addEventListener("click", () => order("v1/page/fault", { engine: engine.name, fault: null }));
  buttons.append(heal);
  row.append(head, made("p", "reason"), buttons);
  return row;
}

function showEngines(engines) {
  const list = at("engines");
  for (const engine of engines) {
    let row = list.querySelector(`[data-name="${CSS.escape(engine.name)}"]`);
    if (!row) list.append((row = engineRow(engine)));
    const [kind, word] = stateOf(engine);
    row.className = `engine ${kind}`;
    row.querySelector(".badge").className = `badge ${kind}`;
    write(row.querySelector(".badge"), word);
    write(row.querySelector(".load"), engine.in_flight === null ? "" : `${engine.in_flight} in flight, ${engine.slots} slots`);
    write(row.querySelector(".reason"), reasonOf(engine));
    for (const button of row.querySelectorAll("[data-fault]")) {
      button.setAttribute("aria-pressed", String(button.dataset.fault === engine.fault));
    }
  }
}

function stepRow(number) {
  const row = made("li");
  const title = made("h3");
  title.append(made("span", "sign"), made("span", "title"));
  const facts = made("dl");
  facts.append(made("dt", "", "Do"), made("dd", "todo"), made("dt", "", "See"), made("dd", "expect"));
  const command = made("div", "command");
  const copy = made("button", "copy", "copy");
  copy.type = "button";
  copy.setAttribute("aria-label", `Copy the command of step ${number + 1}`);
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(row.querySelector("code").textContent);
    write(copy, "copied");
    setTimeout(() => write(copy, "copy"), 1500);
  });
  command.append(made("code"), copy);
  row.append(title, facts, command, made("p", "evidence"));
  return row;
}

function showSteps(steps, finished) {
  at("guide").hidden = steps.length === 0;
  const list = at("steps");
  steps.forEach((step, number) => {
    const row = list.children[number] || list.appendChild(stepRow(number));
    row.className = step.seen ? "seen" : step.current ? "current" : "";
    if (step.current) row.setAttribute("aria-current", "step");
    else row.removeAttribute("aria-current");
    write(row.querySelector(".sign"), step.seen ? "\u2713" : `${number + 1}.`);
    for (const name of ["title", "todo", "expect"]) write(row.querySelector(`.${name}`), step[name]);
    write(row.querySelector("code"), step.command);
    row.querySelector("dl").hidden = !step.current;
    row.querySelector(".command").hidden = !step.current && !step.seen;
    write(row.querySelector(".evidence"), step.seen ? `Seen: ${step.seen}` : "");
  });
  const seen = steps.filter((step) => step.seen).length;
  write(at("guide-note"), finished ? "all steps seen" : `${seen} of ${steps.length} steps seen`);
  at("again").disabled = seen === 0;
}

const seconds = (value) => (value === null ? "\u2013" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`);

function showCallers(state) {
  const answers = state.answers;
  write(at("window"), `answers of the last ${answers.window_s} s`);
  write(at("good"), String(answers.good));
  write(at("shed"), String(answers.refused));
  at("shed").className = answers.refused ? "warn" : "";
  write(at("failed"), String(answers.failed));
  at("failed").className = answers.failed ? "bad" : "";
  write(at("p50"), seconds(answers.p50_s));
  write(at("p99"), seconds(answers.p99_s));
  if (!sliding) {
    at("rate").max = state.rate.most;
    at("rate").value = state.rate.per_second;
    write(at("rate-value"), String(Math.round(state.rate.per_second)));
  }
  const highest = Math.max(4, ...state.chart.map((bins) => bins[0] + bins[1] + bins[2]));
  write(at("highest"), `Full height: ${highest}/s.`);
  const bars = [];
  state.chart.forEach((bins, place) => {
    let below = 40;
    bins.forEach((count, kind) => {
      if (!count) return;
      const height = (40 * count) / highest;
      below -= height;
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      bar.setAttribute("class", ["good", "warn", "bad"][kind]);
      for (const [name, value] of [["x", place + 0.1], ["y", below], ["width", 0.8], ["height", height]]) {
        bar.setAttribute(name, value);
      }
      bars.push(bar);
    });
  });
  at("chart").replaceChildren(...bars);
}

function show(state) {
  const out = state.engines.filter((engine) => ["UNHEALTHY", "DRAINING"].includes(engine.health)).length;
  const connected = state.contact || !state.admin;
  at("link").className = connected ? "badge good" : "badge bad";
  write(at("link"), connected ? "live" : "no contact to the control plane");
  write(at("count"), `${state.engines.length} engines, ${out} out of rotation; policies: ${state.subject}`);
  at("dashboard-link").hidden = !state.admin;
  at("dashboard").href = `${state.admin}/dashboard/`;
  showEngines(state.engines);
  showSteps(state.steps, state.finished);
  showCallers(state);
}

async function look() {
  try {
    const answer = await fetch("v1/page", { cache: "no-store" });
    show(await answer.json());
    document.body.classList.remove("lost");
  } catch {
    at("link").className = "badge bad";
    write(at("link"), "the lab has ended");
    document.body.classList.add("lost");
  }
}

at("rate").addEventListener("input", () => {
  sliding = true;
  write(at("rate-value"), at("rate").value);
});
at("rate").addEventListener("change", async () => {
  await order("v1/page/rate", { per_second: Number(at("rate").value) });
  sliding = false;
});
at("again").addEventListener("click", () => order("v1/page/guide", {}));
document.addEventListener("visibilitychange", () => document.hidden || look());
setInterval(() => document.hidden || look(), EVERY_MS);
look();
