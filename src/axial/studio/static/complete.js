// Complete: keep a part of a picture and draw the rest, several times side by side.

import { el, reveal, slider } from "./dom.js";
import { DrawFields, Result, shapeOf } from "./draw.js";
import { Job } from "./job.js";
import { MaskEditor } from "./mask.js";
import { fromBase64, npyOf } from "./pixels.js";
import { Source } from "./source.js";

const HOW = { exact: "exact conditional", particles: "particle filter", forced: "not exact" };
const KEPT = 6;

export function completeView(app, model) {
  return new CompleteView(app, model);
}

class CompleteView {
  constructor(app, model) {
    Object.assign(this, { app, model, shape: shapeOf(model), editor: null });
    this.source = new Source(model, this.shape, (data) => this.picked(data));
    this.fields = new DrawFields(app, model, { count: 4, noun: "Continuations" });
    this.particles = slider(
      "Particles",
      { min: 1, max: Math.min(32, app.server.limits.particles), value: 1 },
      String,
      "More come nearer to the exact conditional, and take longer.",
    );
    this.particles.range.addEventListener("input", () => this.explain());
    this.button = el("button.primary", { type: "submit" }, "Complete");
    this.job = new Job(this.button);
    this.exactness = el("p.exactness");
    this.keeping = el("section.block.keeping", { hidden: true });
    this.settings = el(
      "div.stack.settingsbox",
      { hidden: true },
      this.fields.elements,
      this.particles,
      this.button,
      this.job.element,
    );
    const form = el("form.panel", { "aria-label": "Complete" }, this.source.element, this.settings);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.complete();
    });
    this.results = el("div.results", this.empty());
    const beside = el("div.results.beside", this.keeping, this.results);
    this.element = el("div.view.threefold", form, beside);
  }

  show() {
    this.source.zone.show();
    const { picture } = this.app;
    if (picture?.model === this.model.id) {
      this.app.picture = null;
      if (this.fields.label && picture.label !== null) this.fields.label.value = picture.label;
      // The noise that drew it would draw it again.
      if (picture.seed !== null) this.fields.seed.value = picture.seed + 1;
      this.source.set(picture.data, picture.name);
    }
  }

  hide() {
    this.source.zone.hide();
  }

  empty() {
    const what = this.model.slices > 1 ? "a clip" : "a picture";
    return el(
      "div.empty",
      el("p", `Give ${what}, choose what is kept, and the rest grows here.`),
      el(
        "p.dim",
        "None at hand? ",
        el("a", { href: "#draw" }, "Draw one"),
        ", enlarge it, and choose Complete.",
      ),
    );
  }

  picked(data) {
    if (this.editor && this.editor.data.length === data.length) {
      this.editor.data = data;
      this.editor.render();
    } else {
      this.editor = new MaskEditor(this.shape, data, {
        video: this.model.moving,
        change: () => this.explain(),
      });
      this.editor.side.append(this.exactness);
      this.keeping.replaceChildren(el("h2", "What is kept"), this.editor.element);
      this.keeping.hidden = false;
      new ResizeObserver(() =>
        this.editor.stage.resize(Math.min(320, this.keeping.clientWidth - 24)),
      ).observe(this.keeping);
    }
    this.settings.hidden = false;
    this.results.querySelector(".empty")?.remove();
    this.explain();
  }

  /** Before anything is drawn: what kind of conditional this will be. */
  explain() {
    if (!this.editor) return;
    const { mode } = this.editor;
    const { keep } = this.model;
    const filtered = mode === "rows" && !keep.exact && keep.particles;
    this.particles.hidden = !filtered;
    const leading = mode === "channels" && this.leadingChannels() !== null;
    let [how, text] = [
      "forced",
      "What is kept of later elements is not known while earlier ones are drawn: they are forced upon the sample.",
    ];
    if ((mode === "rows" && keep.exact) || (leading && keep.channels_exact)) {
      [how, text] = [
        "exact",
        "What is kept comes first in the order of prediction: this samples the exact conditional.",
      ];
    } else if (filtered && Number(this.particles.range.value) > 1) {
      [how, text] = ["particles", "A particle filter: exact as the number of particles grows."];
    } else if (filtered)
      text = `Each channel is drawn before the kept ${keep.unit} of the next are looked at. More particles come nearer to the exact conditional.`;
    else if (mode === "brush")
      text =
        "A painted part is rarely the beginning of the order of prediction; the result says how it was drawn.";
    this.exactness.replaceChildren(badge(how), ` ${text}`);
    const { mask } = this.editor;
    const kept = mask.reduce((sum, value) => sum + value, 0);
    this.button.disabled = kept === 0 || kept === mask.length;
    if (kept === 0)
      this.exactness.textContent =
        "Nothing is kept: keep a part of the picture, or draw a new one.";
    if (kept === mask.length)
      this.exactness.textContent = "Everything is kept: leave something to draw.";
  }

  /** How many leading channels are kept, if those are all that are. */
  leadingChannels() {
    const { channels } = this.editor;
    if (this.shape.frames > 1 || !channels.size) return null;
    return [...channels].every((c) => c < channels.size) ? channels.size : null;
  }

  request() {
    const { editor, fields } = this;
    const body = new FormData();
    body.set("picture", this.source.file());
    const leading = editor.mode === "channels" ? this.leadingChannels() : null;
    if (editor.mode === "rows") body.set("keep", editor.rows);
    else if (leading) body.set("keep_channels", leading);
    else
      body.set(
        "mask",
        new File([npyOf([...this.shape.axes, this.shape.channels], [editor.mask])], "mask.npy"),
      );
    if (!this.particles.hidden) body.set("particles", this.particles.range.value);
    for (const [name, value] of Object.entries(fields.settings))
      if (value !== null) body.set(name, value);
    return body;
  }

  async complete() {
    const { count, seed } = this.fields.settings;
    const { app } = this;
    const result = new Result(this.model, this.title(), count, {
      name: `${this.source.fileName.replace(/\.npy$/, "")}-${seed}`,
      words: (k) => ({ caption: `continuation ${k + 1}`, title: `continuation ${k + 1}` }),
      actions: [["Where the bits go", (card) => app.take("bits", card)]],
      original: this.source.data,
    });
    this.results.querySelector(".empty")?.remove();
    this.results.prepend(result.element);
    reveal(result.element);
    while (this.results.children.length > KEPT) this.results.lastChild.remove();
    const done = await this.job.run(this.model.id, "complete", this.request(), {
      started: (data) => this.started(result, data),
      lines: (data) => result.grow(data),
    });
    if (done) result.finish(done);
    else if (this.job.errors.firstChild) result.element.remove();
    else result.stop();
  }

  started(result, { how, note, original, kept }) {
    const values = fromBase64(original, this.model.dtype === "uint16" ? Uint16Array : Uint8Array);
    const mask = fromBase64(kept, Uint8Array);
    result.know(Int32Array.from(values, (value, at) => (mask[at] ? value : -1)));
    result.element.insertBefore(el("p.exactness", badge(how), ` ${note}`), result.player.element);
  }

  title() {
    const { editor, fields } = this;
    const kept = {
      rows: `${editor.rows} of ${editor.steps} ${editor.noun} kept`,
      brush: "painted part",
      channels: `${[...editor.channels].map((c) => this.shape.channelNames[c]).join(", ")} kept`,
    };
    return `${this.source.name}, ${kept[editor.mode]}, seed ${fields.settings.seed}`;
  }
}

function badge(how) {
  return el(`span.badge.${how}`, HOW[how]);
}
