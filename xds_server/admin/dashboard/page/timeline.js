// Timeline: one lane per kind of event over the last 15 minutes, and a list of the latest events.

import { ago, make, shape } from "./charts.js";

const SPAN_S = 900;
const SHOWN = 60;
const LANES = {
  "ejections": (event) => event.kind === "health" && event.after === "UNHEALTHY",
  "drains": (event) => event.after === "DRAINING" || event.after === "drain",
  "returns": (event) => event.kind === "health" && event.after === "HEALTHY",
  "levels": (event) => event.kind === "level" || event.kind === "ladder",
  "orders": (event) => event.kind === "order",
  "other events": () => true,
};

// As in xds_server/diagnosis/event_text.py.
const LABELS = {
  standing: "pod", ejector: "ejected for", trial: "traffic share", cut: "cutting requests", shadow: "shadow mode", straggler: "speed",
  ceiling: "admission limit", retries: "retried statuses", limits: "timeouts", ladder: "degradation", order: "operator order",
  zones: "zone split", kept: "capacity floor", object: "custom resource", source: "policy source",
};
const UNITS = { ceiling: " requests" };
const HEALTH = { HEALTHY: "returned to rotation", UNHEALTHY: "ejected", DRAINING: "draining" };

export function changeText({ kind, before, after }) {
  const change = `${before ? `${before} → ` : ""}${after}${UNITS[kind] ?? ""}`;
  if (kind === "health" && before && HEALTH[after]) return HEALTH[after];
  if (kind === "verdict" && after === "producing" && before && before !== "no report") return "recovered";
  if (kind === "kept") return `${after === "kept in rotation" ? "" : "no longer "}kept in rotation by the capacity floor`;
  if (kind === "demand") return `demand ${change.replace(" capacity →", " →")}`;
  if (kind === "zones") return `zone split ${change}`;
  return `${LABELS[kind] || kind}: ${change}`;
}

// With its kind, for equal names of different things.
function subjectText({ subject, engine, zone, proxy, pool }) {
  const kind = engine ? "engine" : proxy ? "proxy" : pool ? "pool" : zone ? "zone" : "";
  return kind ? `${kind} ${subject}` : subject || "server";
}

export class Timeline {
  constructor(live, lanes, list) {
    this.live = live;
    this.list = list;
    this.lanes = new Map();
    for (const name of Object.keys(LANES)) {
      const svg = shape("svg", { viewBox: "0 0 300 12", preserveAspectRatio: "none", role: "img" });
      lanes.append(make("div", { class: "lane" }, make("span", {}, name), svg));
      this.lanes.set(name, svg);
    }
  }

  all() {
    const recent = this.live.events.filter((event) => event.at > this.live.at - SPAN_S);
    const sorted = new Map([...this.lanes.keys()].map((name) => [name, []]));
    for (const event of recent) {
      const lane = Object.entries(LANES).find(([, belongs]) => belongs(event))[0];
      sorted.get(lane).push(event);
    }
    for (const [name, events] of sorted) {
      const svg = this.lanes.get(name);
      svg.setAttribute("aria-label", `${events.length} ${name} in the last 15 minutes`);
      svg.replaceChildren(
        ...events.map((event) => {
          const x = (300 * (1 - (this.live.at - event.at) / SPAN_S)).toFixed(1);
          return shape("line", { x1: x, x2: x, y1: 2, y2: 10, class: event.alarm ? "alarm" : "" });
        }),
      );
    }
    const newest = this.live.events.slice(-SHOWN).reverse();
    this.list.replaceChildren(
      ...newest.map((event) => {
        const times = event.times > 1 ? ` ×${event.times}` : "";
        const item = make("li");
        item.append(
          make("span", { class: event.alarm ? "alarm" : "" }, `${subjectText(event)}: ${changeText(event)}${times} `),
          make("small", {}, `${ago(this.live.at - event.at)}. ${event.evidence}`),
        );
        return item;
      }),
    );
  }
}
