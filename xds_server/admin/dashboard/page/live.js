// What the server tells, kept as tables of rows: a whole frame first, then only what became different.
// Text of rows is other people's: whoever shows it uses textContent.

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
    source.addEventListener("frame", heard((said) => this.whole(said)));
    source.addEventListener("change", heard((said) => this.change(said)));
    const begun = Date.now();
    const again = (wait) => {
      clearInterval(watch);
      source.close();
      setTimeout(() => this.connect(), wait);
    };
    // The browser comes back by itself; a refusal it takes as final, and then we do.
    source.onerror = () => {
      this.onLink(false);
      if (source.readyState === EventSource.CLOSED) again(3000);
    };
    // A server that hangs, or a network that drops what is sent, ends nothing: the frame of each second stays away.
    const watch = setInterval(() => {
      if (Date.now() - Math.max(begun, this.heardMs) < SILENT_MS) return;
      this.onLink(false);
      again(0);
    }, 1000);
  }

  whole(said) {
    this.at = said.at;
    this.tables = said.tables;
    this.events = said.events;
    const engines = this.tables.engines ?? {};
    for (const name of this.history.keys()) if (name.startsWith("engine ") && !(name.slice(7) in engines)) this.history.delete(name);
    this.remember();
    this.onChange(null);
  }

  change(said) {
    this.at = said.at;
    const changed = {};
    for (const [name, rows] of Object.entries(said.tables)) {
      const table = (this.tables[name] ??= {});
      for (const [key, row] of Object.entries(rows)) {
        if (row === null) {
          delete table[key];
          this.history.delete(`engine ${key}`);
        } else table[key] = { ...table[key], ...row };
      }
      changed[name] = rows;
    }
    this.events = this.events.concat(said.events).slice(-EVENTS);
    this.remember();
    this.onChange({ tables: changed, events: said.events });
  }

  // The last two minutes of what sparklines show.
  remember() {
    for (const [name, row] of Object.entries(this.tables.pools ?? {})) {
      this.note(`pool ${name} ok`, row.donePerS);
      this.note(`pool ${name} shed`, row.shedPerS);
    }
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
