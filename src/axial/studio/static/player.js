// Moving through what has more than one slice: frames of a video, slices of a volume.

import { el, field } from "./dom.js";

const PER_SECOND = 8;

/** Play, a slider and, for three axes, the direction; `change({slice, direction})` is told. */
export class Player {
  constructor(shape, change, { video = false } = {}) {
    this.shape = shape;
    this.change = change;
    this.view = { slice: 0, direction: 0 };
    this.noun = video ? "frame" : "slice";
    this.timer = null;
    const slices = shape.plane().slices;
    this.button = el("button.icon", { type: "button", click: () => this.toggle() });
    this.range = el("input", {
      type: "range",
      min: 0,
      max: slices - 1,
      value: 0,
      "aria-label": this.noun,
    });
    this.range.addEventListener("input", () => this.show(Number(this.range.value)));
    this.number = el("output.place");
    this.element = el(
      "div.player",
      { hidden: slices < 2 && shape.directions.length < 2 },
      this.button,
      this.range,
      this.number,
    );
    if (shape.directions.length > 1) this.element.append(this.directionField(video));
    this.render();
  }

  directionField(video) {
    const names = video
      ? ["frames", "rows over time", "columns over time"]
      : ["axis 0", "axis 1", "axis 2"];
    const select = el(
      "select",
      this.shape.directions.map((k) => el("option", { value: k }, names[k])),
    );
    select.addEventListener("change", () => {
      this.view = { slice: 0, direction: Number(select.value) };
      this.range.max = this.shape.plane(this.view.direction).slices - 1;
      this.show(0);
    });
    return field("Slices along", select);
  }

  show(slice) {
    this.view = { ...this.view, slice };
    this.render();
    this.change(this.view);
  }

  toggle() {
    if (this.timer) this.stop();
    else {
      this.timer = setInterval(() => {
        if (!this.element.isConnected) return this.stop();
        return this.show((this.view.slice + 1) % (Number(this.range.max) + 1));
      }, 1000 / PER_SECOND);
      this.render();
    }
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.render();
  }

  render() {
    const playing = this.timer !== null;
    this.button.textContent = playing ? "❚❚" : "▶";
    this.button.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.range.value = this.view.slice;
    this.number.textContent = `${this.noun} ${this.view.slice + 1} of ${Number(this.range.max) + 1}`;
  }
}
