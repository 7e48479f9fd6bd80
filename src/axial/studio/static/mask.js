// What is kept of a picture: leading rows or frames, channels, or what a brush leaves.

import { el, plural, segments, slider } from "./dom.js";
import { pixelsOf } from "./pixels.js";
import { Player } from "./player.js";
import { Stage } from "./stage.js";

/** The picture with what is to be drawn again covered, and the brush that changes it. */
export class MaskEditor {
  constructor(shape, data, { video = false, change }) {
    Object.assign(this, { shape, data, change, mode: "rows", view: {}, painting: 0 });
    this.rows = Math.ceil(this.steps / 2);
    this.channels = new Set([0]);
    this.brush = new Uint8Array(shape.size).fill(1);
    this.stage = new Stage({
      label: "What is kept. With the brush, arrow keys move and space paints.",
      press: (i, j) => this.stroke(i, j),
      drag: true,
      key: (event) => this.key(event),
    });
    this.largest = Math.max(9, Math.ceil(shape.plane().width / 3));
    this.stage.size = Math.ceil(shape.plane().width / 10);
    this.player = new Player(shape, (view) => ((this.view = view), this.render()), { video });
    this.tools = el("div.tools");
    const one = shape.axes.length === 1 ? "elements" : "rows";
    this.noun = shape.plane().slices > 1 ? (video ? "frames" : "slices") : one;
    const modes = [
      ["rows", this.noun === "rows" ? "Upper rows" : `First ${this.noun}`],
      ["brush", "Brush"],
    ];
    if (shape.channels > 1) modes.splice(1, 0, ["channels", "Channels"]);
    const choice = segments("Keep", modes, this.mode, (mode) => this.use(mode));
    this.side = el("div.stack", choice, this.tools);
    this.element = el(
      "div.mask",
      el("div.stack", this.stage.element, this.player.element),
      this.side,
    );
    this.use("rows");
  }

  /** Rows of a picture, or frames of a video. */
  get steps() {
    const { axes, frames } = this.shape;
    return frames > 1 ? frames : axes[0];
  }

  use(mode) {
    this.mode = mode;
    this.stage.element.classList.toggle("painting", mode === "brush");
    const tools = {
      rows: () => this.rowTools(),
      channels: () => this.channelTools(),
      brush: () => this.brushTools(),
    };
    this.tools.replaceChildren(...tools[mode]());
    this.render();
  }

  rowTools() {
    const made = slider(
      `${this.noun} kept`.replace(/^./, (first) => first.toUpperCase()),
      { min: 1, max: Math.max(1, this.steps - 1), value: this.rows },
      (n) => `${n} of ${this.steps}`,
    );
    made.range.addEventListener("input", () => {
      this.rows = Number(made.range.value);
      this.render();
    });
    return [made];
  }

  channelTools() {
    const set = el("fieldset.checks", el("legend", "Channels kept"));
    this.shape.channelNames.forEach((name, c) => {
      const box = el("input", { type: "checkbox", checked: this.channels.has(c) });
      box.addEventListener("change", () => {
        if (box.checked) this.channels.add(c);
        else this.channels.delete(c);
        this.render();
      });
      set.append(el("label", box, ` ${name}`));
    });
    return [set];
  }

  brushTools() {
    const kinds = segments(
      "The brush",
      [
        ["0", "Draws again"],
        ["1", "Keeps"],
      ],
      String(this.painting),
      (value) => (this.painting = Number(value)),
    );
    const size = slider("Size", { min: 1, max: this.largest, value: this.stage.size }, (n) =>
      plural(n, "pixel"),
    );
    size.range.addEventListener("input", () => this.resize(Number(size.range.value)));
    this.sizeField = size;
    const all = (value, name) =>
      el("button", { type: "button", click: () => (this.brush.fill(value), this.render()) }, name);
    return [kinds, size, el("div.actions", all(1, "Keep all"), all(0, "Keep nothing"))];
  }

  /** Another size of the brush. */
  resize(size) {
    this.stage.size = Math.min(this.largest, Math.max(1, size));
    this.stage.place();
  }

  key(event) {
    if (this.mode !== "brush" || !["+", "=", "-"].includes(event.key)) return false;
    this.resize(this.stage.size + (event.key === "-" ? -1 : 1));
    this.sizeField.set(this.stage.size);
    return true;
  }

  /** Paint a disc around a pixel, on the slice that is seen, through all its channels. */
  stroke(i, j) {
    if (this.mode !== "brush") return;
    const plane = this.shape.plane(this.view.direction);
    const { start, down, right } = this.shape.steps(plane, this.view.slice ?? 0);
    const reach = this.stage.size / 2;
    for (let a = Math.ceil(i - reach); a <= i + reach; a++) {
      for (let b = Math.ceil(j - reach); b <= j + reach; b++) {
        if (a < 0 || b < 0 || a >= plane.height || b >= plane.width) continue;
        if ((a - i) ** 2 + (b - j) ** 2 > reach ** 2) continue;
        const at = start + a * down + b * right;
        this.brush.fill(this.painting, at, at + this.shape.frameChannels);
      }
    }
    this.render();
  }

  /** 1 for each element that is kept, in the order (*axes, c). */
  get mask() {
    const { shape } = this;
    if (this.mode === "brush") return this.brush;
    const mask = new Uint8Array(shape.size);
    const each = shape.strides[0];
    for (let at = 0; at < shape.size; at++) {
      const c = at % shape.channels;
      if (this.mode === "channels") mask[at] = Number(this.channels.has(c % shape.frameChannels));
      else
        mask[at] = Number(
          (shape.frames > 1 ? Math.floor(c / shape.frameChannels) : Math.floor(at / each)) <
            this.rows,
        );
    }
    return mask;
  }

  /** What is to be drawn is covered; of what is kept of a pixel, the channels that are. */
  render() {
    const mask = this.mask;
    const known = this.data.map((value, at) => (mask[at] ? value : -1));
    this.stage.paint(pixelsOf(this.shape, known, this.view));
    this.change(mask);
  }
}
