// Where the bits go: a map of what each pixel costs, and what the model expected at one of them.

import { floats } from "./api.js";
import { named, sizeBars } from "./chart.js";
import { count, el, field, segments } from "./dom.js";
import { shapeOf } from "./draw.js";
import { Job } from "./job.js";
import { heat, heatMap, pixelsOf, quantile } from "./pixels.js";
import { PixelPanel } from "./pixel.js";
import { Player } from "./player.js";
import { Source } from "./source.js";
import { Stage } from "./stage.js";

const SETTLED = 400; // milliseconds after which a crop is taken for final

export function bitsView(app, model) {
  return new BitsView(app, model);
}

class BitsView {
  constructor(app, model) {
    Object.assign(this, {
      app,
      model,
      shape: shapeOf(model),
      channel: "all",
      view: {},
      done: null,
    });
    this.source = new Source(model, this.shape, () => this.settle());
    this.again = el("button", { type: "submit" }, "Measure again");
    this.job = new Job(this.again);
    this.label = null;
    this.panel = el("form.panel", { "aria-label": "Where the bits go" }, this.source.element);
    if (model.classes.length) {
      this.label = el(
        "select",
        model.classes.map((name, k) => el("option", { value: k }, name)),
      );
      this.label.addEventListener("change", () => this.settle());
      this.panel.append(field("Class", this.label));
    }
    this.again.hidden = true;
    this.panel.append(this.job.element, this.again, this.facts());
    this.panel.addEventListener("submit", (event) => (event.preventDefault(), this.measure()));
    this.results = el("div.results", this.empty());
    this.element = el("div.view", this.panel, this.results);
    this.build();
  }

  facts() {
    this.figure = el("p.figure", { hidden: true });
    return this.figure;
  }

  /** The picture, its map and the panel of one pixel; shown once there is something to show. */
  build() {
    const events = { press: (i, j) => this.pick(i, j, 0), arrow: (i, j) => this.pick(i, j, 250) };
    this.picture = new Stage({ label: "The picture. Arrow keys choose a pixel.", ...events });
    this.map = new Stage({ label: "Bits of each pixel. Arrow keys choose a pixel.", ...events });
    this.player = new Player(this.shape, (view) => ((this.view = view), this.render()), {
      video: this.model.moving,
    });
    const channels = this.shape.channelNames.map((name, k) => [String(k), name]);
    this.choice = segments("Bits of", [["all", "all channels"], ...channels], "all", (value) => {
      this.channel = value;
      this.render();
    });
    this.choice.hidden = channels.length < 2;
    this.scale = el("canvas.pixels.heatscale", { width: 128, height: 1, "aria-hidden": "true" });
    const pixels = new ImageData(128, 1);
    for (let k = 0; k < 128; k++) pixels.data.set([...heat(k / 127), 255], 4 * k);
    this.scale.getContext("2d").putImageData(pixels, 0, 0);
    this.most = el("span");
    const legend = el("div.heatlegend", el("span", "0"), this.scale, this.most);
    this.sizes = el("section.block");
    this.stages = el(
      "div.stages",
      el("figure", this.picture.element, el("figcaption", "Choose a pixel to look inside")),
      el("figure", this.map.element, legend, this.choice),
    );
    this.pixel = new PixelPanel(this.model, this.shape, (image) => this.picture.cover(image));
    this.shown = el(
      "div.results",
      el("section.block", this.player.element, this.stages),
      this.pixel.element,
      this.sizes,
    );
    new ResizeObserver(() => this.resize()).observe(this.results);
  }

  resize() {
    const wide = this.results.clientWidth;
    const inner = wide - (wide < 560 ? 24 : 42);
    const room = Math.min(416, wide < 560 ? inner : Math.floor((inner - 24) / 2));
    this.picture.resize(room);
    this.map.resize(room);
  }

  show() {
    this.source.zone.show();
    const { picture } = this.app;
    if (picture?.model === this.model.id) {
      this.app.picture = null;
      if (this.label && picture.label !== null) this.label.value = picture.label;
      this.source.set(picture.data, picture.name);
    }
  }

  hide() {
    this.source.zone.hide();
  }

  empty() {
    return el(
      "div.empty",
      el("p", "Give a picture, and its bits appear here, pixel by pixel."),
      el(
        "p.dim",
        "None at hand? ",
        el("a", { href: "#draw" }, "Draw one"),
        ", enlarge it, and choose Where the bits go.",
      ),
    );
  }

  settle() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.measure(), SETTLED);
  }

  request() {
    const body = new FormData();
    body.set("picture", this.source.file());
    if (this.label) body.set("label", this.label.value);
    return body;
  }

  async measure() {
    if (!this.source.data) return;
    const data = this.source.data;
    if (data.includes(-1)) {
      this.results.replaceChildren(
        el("p.empty", "Bits are counted of whole clips: give all frames."),
      );
      return;
    }
    const done = await this.job.run(this.model.id, "bits", this.request());
    this.again.hidden = Boolean(done) || this.job.busy;
    if (!done) return;
    this.done = { ...done, map: floats(done.map), data };
    this.pixel.clear();
    this.results.replaceChildren(this.shown);
    this.figure.hidden = false;
    this.figure.replaceChildren(
      el("b", done.bits_per_dim.toFixed(3)),
      " bits/dim",
      el("span.dim", `${count(Math.round(done.bits))} bits for ${count(done.elements)} elements`),
    );
    const sizes = done.sizes.map((size) => named(size, this.model.id));
    this.sizes.hidden = sizes.length < 2; // no other format holds such an example
    this.sizes.replaceChildren(el("h3", "The same pixels as lossless files"), sizeBars(sizes));
    this.render();
    this.resize();
  }

  /** Bits of each pixel of the slice that is seen. */
  planeOfBits() {
    const plane = this.shape.plane(this.view.direction);
    const { start, down, right } = this.shape.steps(plane, this.view.slice ?? 0);
    const channels =
      this.channel === "all" ? [...Array(this.shape.frameChannels).keys()] : [Number(this.channel)];
    const bits = new Float64Array(plane.height * plane.width);
    for (let k = 0; k < bits.length; k++) {
      const at = start + Math.floor(k / plane.width) * down + (k % plane.width) * right;
      for (const c of channels) bits[k] += this.done.map[at + c];
    }
    return { bits, plane };
  }

  render() {
    if (!this.done) return;
    const { bits, plane } = this.planeOfBits();
    const most = quantile(bits, 0.999) || 1;
    this.picture.paint(pixelsOf(this.shape, this.done.data, this.view));
    this.map.paint(heatMap(plane.height, plane.width, bits, most));
    this.most.textContent = `${most.toFixed(1)} bits a pixel and more`;
    this.pixel.look(this.view);
  }

  /** The pixel at a row and column of what is seen, soon or now. */
  pick(i, j, delay) {
    if (!this.done) return;
    for (const stage of [this.picture, this.map]) {
      stage.go(i, j);
      stage.element.classList.add("picked");
    }
    clearTimeout(this.picking);
    this.picking = setTimeout(() => {
      const body = this.request();
      const place = this.placeOf(i, j);
      body.set("place", place.join(","));
      this.pixel.ask(body, place);
    }, delay);
  }

  /** The index along each axis. */
  placeOf(i, j) {
    const { axes, strides, channels } = this.shape;
    const { start, down, right } = this.shape.steps(
      this.shape.plane(this.view.direction),
      this.view.slice ?? 0,
    );
    let rest = start + i * down + j * right;
    rest -= rest % channels;
    return axes.map((length, k) => Math.floor(rest / strides[k]) % length);
  }
}
