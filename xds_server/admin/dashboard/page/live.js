// Live data of the server as tables of rows: one full frame, then changes.
// Row text is untrusted: set it with textContent only.

const HISTORY_S = 120;
const EVENTS = 2000;
const SILENT_MS = 6000;

export class Live {
  constructor(onChange, onLink) {
    this.tables = {};
    this.events = [];
    this.at = 0;
    this.history = new Map();
    this.heardMs = 0;
    this.onChange = onChange;
    this.onLink = onLink;
  }

  connect() {
    const source = new EventSource("/v1/live");
    const heard = (take) => (event) => {
      this.heardMs = Date.now();
      this.onLink(true);
      take(JSON.parse(event.data));
    };
    source.addEventListener("frame", heard((message) => this.whole(message)));
    source.addEventListener("change", heard((message) => this.change(message)));
    const begun = Date.now();
    const again = (wait) => {
      clearInterval(watch);
      source.close();
      setTimeout(() => this.connect(), wait);
    };
    // The browser reconnects by itself, except after a refusal; then we do.
    source.onerror = () => {
      this.onLink(false);
      if (source.readyState === EventSource.CLOSED) again(3000);
    };
    // A hung server or a network that drops packets raises no error; the missing frames reveal it.
    const watch = setInterval(() => {
      if (Date.now() - Math.max(begun, this.heardMs) < SILENT_MS) return;
      this.onLink(false);
      again(0);
    }, 1000);
  }

  whole(message) {
    this.at = message.at;
    this.tables = message.tables;
    this.events = message.events;
    const engines = this.tables.engines ?? {};
    for (const name of this.history.keys()) if (name.startsWith("engine ") && !(name.slice(7) in engines)) this.history.delete(name);
    this.remember();
    this.onChange(null);
  }

  change(message) {
    this.at = message.at;
    const changed = {};
    for (const [name, rows] of Object.entries(message.tables)) {
      const table = (this.tables[name] ??= {});
      for (const [key, row] of Object.entries(rows)) {
        if (row === null) {
          delete table[key];
          this.history.delete(`engine ${key}`);
        } else table[key] = { ...table[key], ...row };
      }
      changed[name] = rows;
    }
    this.events = this.events.concat(message.events).slice(-EVENTS);
    this.remember();
    this.onChange({ tables: changed, events: message.events });
  }

  // Keep two minutes of data for sparklines.
  remember() {
    for (const [name, row] of Object.entries(this.tables.engines ?? {})) this.note(`engine ${name}`, row.inFlight);
  }

  note(name, value) {
    let series = this.history.get(name);
    if (!series) this.history.set(name, (series = []));
    series.push([this.at, value ?? 0]);
    while (series.length && series[0][0] < this.at - HISTORY_S) series.shift();
  }

  series(name) {
    return this.history.get(name) ?? [];
  }
}

export { HISTORY_S };
