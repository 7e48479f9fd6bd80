// Draw: pictures that grow line by line.

import { grow, integers } from "./api.js";
import {
  commandLine,
  count,
  download,
  el,
  field,
  plural,
  reveal,
  seconds,
  slider,
  whole,
} from "./dom.js";
import { Job } from "./job.js";
import { Card, roomFor } from "./picture.js";
import { Shape, examplesFile } from "./pixels.js";
import { Player } from "./player.js";

const KEPT = 8; // results that stay on the page

export const shapeOf = (model) => new Shape({ ...model, frames: model.stacked ? model.slices : 1 });

/** Fields that drawing and completing share. */
export class DrawFields {
  constructor(app, model, { count, noun }) {
    const most = app.server.limits.pictures;
    this.most = most;
    this.count = el("input", {
      type: "number",
      min: 1,
      max: most,
      value: count,
      inputmode: "numeric",
    });
    this.seed = el("input", {
      type: "number",
      min: 0,
      max: Number.MAX_SAFE_INTEGER,
      value: 0,
      inputmode: "numeric",
    });
    const roll = () => (this.seed.value = Math.floor(Math.random() * 1e6));
    const dice = el(
      "button.icon",
      { type: "button", title: "Another seed", "aria-label": "Another seed", click: roll },
      "⚄",
    );
    const seed = field("Seed", this.seed, null, dice);
    this.temperature = slider(
      "Temperature",
      { min: 0, max: 1.5, step: 0.05, value: 1 },
      (t) => t.toFixed(2),
      "1 draws from the model itself; less draws likelier values, so less varied ones.",
    );
    this.elements = [el("div.pair", field(noun, this.count), seed), this.temperature];
    this.label = null;
    if (model.classes.length) {
      const options = model.classes.map((name, k) => el("option", { value: k }, name));
      this.label = el("select", el("option", { value: "" }, "each in turn"), options);
      this.elements.unshift(field("Class", this.label));
    }
  }

  get settings() {
    const label = this.label?.value ? Number(this.label.value) : null;
    return {
      count: whole(this.count, 1, this.most),
      seed: whole(this.seed, 0, Number.MAX_SAFE_INTEGER),
      temperature: Number(this.temperature.range.value),
      label,
    };
  }
}

/** Pictures of one job: they grow, and when they are done there are files and a command. */
export class Result {
  /** `words(k)`: caption and title of a picture; `original`, if there is one, is shown first. */
  constructor(model, title, count, { name, words, actions, original = null }) {
    Object.assign(this, { model, name, shape: shapeOf(model) });
    const how = { video: model.moving, actions };
    this.all = [];
    this.cards = [...Array(count).keys()].map(
      (k) => new Card(this.shape, { ...words(k), name: `${name}-${k}` }, this.all, how),
    );
    this.all.push(...this.cards);
    if (original) {
      const card = new Card(
        this.shape,
        { title: "original", caption: "original", name },
        this.all,
        how,
      );
      card.update(original);
      card.finish();
      this.all.unshift(card);
    }
    this.player = new Player(this.shape, (view) => this.all.forEach((card) => card.look(view)), {
      video: model.moving,
    });
    this.grid = el(
      "div.grid",
      this.all.map((card) => card.element),
    );
    this.status = el("span.dim");
    this.files = el("div.files");
    this.element = el(
      "section.result",
      el("header", el("h2", title), this.status),
      this.player.element,
      this.grid,
      this.files,
    );
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  resize() {
    const room = roomFor(this.all.length, this.grid.clientWidth);
    for (const card of this.all) card.resize(room);
  }

  /** Start from what is known already. */
  know(data) {
    for (const card of this.cards) card.update(Int32Array.from(data));
  }

  grow(data) {
    const pictures = this.cards.map((card) => card.data);
    for (const k of grow(pictures, data, this.model.dtype)) this.cards[k].render();
    this.status.textContent = `line ${data.done} of ${data.of}`;
  }

  finish(done) {
    const all = integers(done.values, done.dtype);
    const command = done.command ?? done.python;
    const { size } = this.shape;
    this.cards.forEach((card, k) => {
      const note =
        this.cards.length > 1
          ? `It makes all ${this.cards.length} pictures; this is number ${k + 1}.`
          : null;
      const { gif, label } = done.pictures[k];
      card.finish({ command, note, gif, label });
      card.update(Int32Array.from(all.subarray(k * size, (k + 1) * size)));
    });
    this.status.textContent = `${plural(this.cards.length, "picture")} in ${seconds(done.seconds)}`;
    const array = () =>
      download(
        `${this.name}.npy`,
        examplesFile(
          this.shape,
          this.cards.map((card) => card.data),
        ),
      );
    this.files.replaceChildren(
      el(
        "div.actions",
        el("a.button", { href: done.sheet, download: `${this.name}.png` }, "Sheet (PNG)"),
        el("button", { type: "button", click: array }, "Array (.npy)"),
      ),
      commandLine(command),
    );
  }

  stop() {
    this.status.textContent = "cancelled";
    this.element.classList.add("stopped");
  }
}

export function drawView(app, model) {
  if (model.given_channels || model.given_steps) {
    const text = `${model.id} continues what it is given, so there is nothing to draw from nothing. `;
    return {
      element: el("p.empty", text, el("a", { href: "#complete" }, "Complete a clip instead.")),
    };
  }
  const fields = new DrawFields(app, model, { count: 4, noun: "Pictures" });
  const button = el("button.primary", { type: "submit" }, "Draw");
  const job = new Job(button);
  const results = el("div.results", empty(model));
  const form = el(
    "form.panel",
    { "aria-label": "Draw" },
    fields.elements,
    button,
    job.element,
    about(model),
  );
  const actions = [
    ["Complete", "complete"],
    ["Where the bits go", "bits"],
  ].map(([name, view]) => [name, (card) => app.take(view, card)]);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const settings = fields.settings;
    const result = new Result(model, describe(model, settings), settings.count, {
      name: `${model.id}-${settings.seed}`,
      actions,
      words: (k) => labelled(model, settings, k),
    });
    results.querySelector(".empty")?.remove();
    results.prepend(result.element);
    reveal(result.element);
    while (results.children.length > KEPT) results.lastChild.remove();
    const done = await job.run(model.id, "draw", settings, { lines: (data) => result.grow(data) });
    if (done) result.finish(done);
    else if (job.errors.firstChild) result.element.remove();
    else result.stop();
  });
  return { element: el("div.view", form, results) };
}

/** What stands below a picture, and above it where it is alone. */
function labelled(model, { label, seed }, k) {
  const kind = model.classes.length
    ? `${className(model, label ?? k % model.classes.length)}, `
    : "";
  return { seed, caption: `${kind}${k + 1}`, title: `${kind}seed ${seed}, number ${k + 1}` };
}

/** A class by its name; one that has only a number is called a class. */
function className(model, label) {
  const name = model.classes[label];
  return /^\d+$/.test(name) ? `class ${name}` : name;
}

function describe(model, { seed, temperature, label }) {
  const parts = [`seed ${seed}`];
  if (label !== null) parts.unshift(className(model, label));
  if (temperature !== 1) parts.push(`temperature ${temperature}`);
  return parts.join(", ");
}

function empty(model) {
  return el(
    "div.empty",
    el("p", "Pictures grow here, one line at a time."),
    el("p.dim", `${model.id} draws ${shapeOf(model).describe()}, ${model.lines} lines each.`),
  );
}

/** What the model is. */
function about(model) {
  return el(
    "details.about",
    el("summary", "About this model"),
    el(
      "dl",
      el("dt", "Family"),
      el("dd", model.family),
      el("dt", "Parameters"),
      el("dd", count(model.parameters)),
      el("dt", "Examples"),
      el("dd", shapeOf(model).describe()),
      el("dt", "Source"),
      el("dd", model.source),
    ),
    el("pre", { tabindex: "0" }, model.outline),
  );
}
