// Runs: curves that move while training writes them, sample sheets, settings side by side.

import { Refused, get } from "./api.js";
import { count, el, problem, say, segments, slider } from "./dom.js";
import { Plot, smoothed, swatch } from "./plot.js";
import { settingsTable } from "./settings.js";
import { SheetSlider } from "./sheets.js";

const EVERY = 2000; // milliseconds between two looks
const ALIVE = 120; // seconds after which a run that writes nothing is taken for stopped

export function runsView(app) {
  return new RunsView(app);
}

class RunsView {
  constructor(app) {
    Object.assign(this, {
      app,
      runs: [],
      logs: new Map(),
      chosen: new Set(),
      known: new Map(),
      timer: null,
      first: true,
    });
    this.options = { x: "step", logarithmic: false, smooth: 0 };
    this.list = el("div.runlist", { role: "group", "aria-label": "Runs" });
    this.errors = el("div.errors");
    this.plot = new Plot("Loss and held-out bits/dim of the chosen runs");
    this.sheets = el("div.stack");
    this.settings = el("div.stack");
    const redraw = (change) => (value) => {
      change(value);
      this.draw();
    };
    const smooth = slider("Smoothing", { min: 0, max: 0.98, step: 0.02, value: 0 }, (value) =>
      value ? value.toFixed(2) : "none",
    );
    smooth.range.addEventListener(
      "input",
      redraw(() => (this.options.smooth = Number(smooth.range.value))),
    );
    const tools = el(
      "div.plottools",
      segments(
        "Along",
        [
          ["step", "Steps"],
          ["seconds", "Time"],
        ],
        "step",
        redraw((value) => (this.options.x = value)),
      ),
      segments(
        "Scale",
        [
          ["linear", "Linear"],
          ["log", "Log"],
        ],
        "linear",
        redraw((value) => (this.options.logarithmic = value === "log")),
      ),
      smooth,
    );
    const plot = el("section.block", this.plot.element, tools);
    this.body = el("div.results", plot, this.sheets, this.settings);
    this.panel = el("div.panel", el("h2", "Runs"), this.errors, this.list);
    this.element = el("div.view", el("p.empty", "Looking for runs …"));
  }

  show() {
    this.hide();
    this.look();
  }

  hide() {
    clearTimeout(this.timer);
    this.timer = null;
    this.visible = Symbol("one look at a time");
  }

  /** Look for what is new, now and again while the view is seen. */
  async look() {
    const visible = this.visible;
    try {
      if (!this.app.server.runs) return this.none();
      const { folder, runs } = await get("/api/runs");
      if (visible !== this.visible) return undefined;
      this.runs = runs;
      problem(this.errors, "");
      if (!runs.length) this.none(folder);
      else {
        if (this.first) this.choose(runs);
        this.renderList();
        await Promise.all([...this.chosen].map((id) => this.read(id)));
        this.draw();
        await this.details();
      }
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problem(this.errors, error.message);
    }
    if (visible === this.visible) this.timer = setTimeout(() => this.look(), EVERY);
    return undefined;
  }

  /** At first the newest run is shown. */
  choose(runs) {
    this.first = false;
    const good = runs
      .filter((run) => !run.error)
      .sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
    if (good.length) this.chosen.add(good[0].id);
  }

  none(folder = null) {
    const where = folder
      ? `There is no run in ${folder} yet.`
      : "The studio was started without a folder of runs.";
    this.element.replaceChildren(
      el(
        "div.empty",
        el("p", where),
        el(
          "p.dim",
          folder
            ? `axial train digits --out ${folder}/digits starts one; it appears here by itself.`
            : "axial studio --runs runs shows them.",
        ),
      ),
    );
    this.first = true;
  }

  colour(id) {
    if (!this.known.has(id)) this.known.set(id, this.known.size);
    return this.known.get(id);
  }

  renderList() {
    if (!this.panel.isConnected) this.element.replaceChildren(this.panel, this.body);
    const seen = new Map([...this.list.children].map((row) => [row.dataset.run, row]));
    this.list.replaceChildren(
      ...this.runs.map((run) => {
        const row = seen.get(run.id) ?? this.row(run);
        row.querySelector(".facts").replaceChildren(...this.facts(run));
        row.classList.toggle("alive", this.alive(run));
        return row;
      }),
    );
  }

  alive(run) {
    return run.step !== run.steps && Date.now() / 1000 - (run.updated ?? 0) < ALIVE;
  }

  row(run) {
    const box = el("input", {
      type: "checkbox",
      checked: this.chosen.has(run.id),
      disabled: Boolean(run.error),
    });
    box.addEventListener("change", async () => {
      if (box.checked) this.chosen.add(run.id);
      else this.chosen.delete(run.id);
      say(`${run.name} ${box.checked ? "shown" : "hidden"}`);
      if (box.checked) await this.read(run.id).catch(() => {}); // the next look tells what is wrong
      this.draw();
      this.details();
    });
    const row = el(
      "label.run",
      box,
      swatch({ colour: this.colour(run.id) }),
      el("span.name", run.name),
      el("span.facts"),
    );
    row.dataset.run = run.id;
    return row;
  }

  facts(run) {
    if (run.error) return [el("span.problem", run.error)];
    const step = run.steps
      ? `step ${count(run.step)} of ${count(run.steps)}`
      : `step ${count(run.step ?? 0)}`;
    const held =
      run.validation === null || run.validation === undefined
        ? ""
        : `, held-out ${run.validation.toFixed(3)}`;
    const bar = el("progress", {
      max: 1,
      value: run.steps ? (run.step ?? 0) / run.steps : 0,
      "aria-label": step,
    });
    return [el("span.dim", `${step}${held}`), run.steps && this.alive(run) ? bar : null].filter(
      Boolean,
    );
  }

  /** Read on in the log of a run. */
  async read(id) {
    const log = this.logs.get(id) ?? { records: [], next: 0 };
    this.logs.set(id, log);
    if (log.reading) return log.reading;
    log.reading = (async () => {
      for (;;) {
        const found = await get(`/api/runs/${id}/log?after=${log.next}`);
        if (found.restarted) log.records = [];
        log.records.push(...found.records);
        log.next = found.next;
        if (!found.more) return;
      }
    })().finally(() => (log.reading = null));
    return log.reading;
  }

  shown() {
    return this.runs.filter((run) => this.chosen.has(run.id));
  }

  draw() {
    const { x, logarithmic, smooth } = this.options;
    const curves = [];
    for (const run of this.shown()) {
      const colour = this.colour(run.id);
      const records = timed(this.logs.get(run.id)?.records ?? []);
      const points = (name) =>
        records
          .filter((record) => Number.isFinite(record[name]) && Number.isFinite(record[x]))
          .map((record) => [record[x], record[name]]);
      const loss = points("loss");
      curves.push({
        name: `${run.name}, training`,
        colour,
        points: smooth ? smoothed(loss, smooth) : loss,
      });
      curves.push({
        name: `${run.name}, held out`,
        colour,
        dashed: true,
        marked: true,
        points: points("validation"),
      });
    }
    this.plot.show(
      curves.filter((curve) => curve.points.length),
      {
        logarithmic,
        yName: "bits/dim",
        xName: x === "step" ? "step" : "",
        ...(x === "step" ? {} : { xShown: duration, unit: unitOf }),
      },
    );
  }

  /** Sheets and settings of what is chosen, where they have changed. */
  async details() {
    const runs = this.shown();
    const key = JSON.stringify(runs.map((run) => [run.id, run.samples]));
    if (key === this.detailed) return;
    this.detailed = key;
    try {
      const abouts = await Promise.all(runs.map((run) => get(`/api/runs/${run.id}`)));
      const query = runs.map((run) => `run=${encodeURIComponent(run.id)}`).join("&");
      const compared = runs.length ? await get(`/api/compare?${query}`) : null;
      if (key !== this.detailed) return;
      this.slider ??= new SheetSlider();
      this.slider.show(abouts.map((about, k) => ({ ...about, colour: this.colour(runs[k].id) })));
      this.sheets.replaceChildren(this.slider.element);
      this.settings.replaceChildren(
        ...(compared ? [settingsTable(compared, (id) => this.colour(id))] : []),
      );
    } catch (error) {
      this.detailed = null;
      if (!(error instanceof Refused)) throw error;
      problem(this.errors, error.message);
    }
  }
}

/** Records with the seconds of training; those that say none have the time of the one before. */
function timed(records) {
  let last = 0;
  return records.map((record) => ({ ...record, seconds: (last = record.seconds ?? last) }));
}

/** Seconds, minutes or hours: what a plot of so many seconds counts in. */
function unitOf(seconds) {
  return seconds < 120 ? 1 : seconds < 2 * 3600 ? 60 : 3600;
}

function duration(seconds) {
  const unit = unitOf(seconds);
  return `${Number((seconds / unit).toFixed(2))} ${{ 1: "s", 60: "min", 3600: "h" }[unit]}`;
}
