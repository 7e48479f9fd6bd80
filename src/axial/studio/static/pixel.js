// One pixel: the model's distribution over its values, and what each layer and head attends to.

import { floats } from "./api.js";
import { histogram } from "./chart.js";
import { el, field, segments } from "./dom.js";
import { Job } from "./job.js";
import { fromBase64, heat, paint } from "./pixels.js";

const HEAT =
  "Heat on the picture: the weights of the chosen head, the largest white. Choose it again to take the heat away.";
const SHIFTED =
  "An outer decoder is shifted by one: what it tells this pixel, it has seen from the one before it along its axis.";

export class PixelPanel {
  /** `cover(image)` lays heat over the picture, null takes it away. */
  constructor(model, shape, cover) {
    Object.assign(this, {
      model,
      shape,
      cover,
      view: {},
      channel: 0,
      layer: null,
      head: "mean",
      done: null,
    });
    this.job = new Job(el("button", { hidden: true }));
    this.heading = el("h3", "One pixel");
    this.body = el("div.stack");
    this.element = el("section.block", this.heading, this.job.element, this.body);
    this.clear();
  }

  clear() {
    this.done = null;
    this.cover(null);
    this.body.replaceChildren(
      el(
        "p.dim",
        "Choose a pixel of the picture or of the map: what the model expected there, and where it looked.",
      ),
    );
    this.heading.textContent = "One pixel";
  }

  async ask(body, place) {
    const done = await this.job.run(this.model.id, "pixel", body);
    if (!done) return;
    this.done = done;
    this.heading.textContent = `The pixel at ${place.map((index, k) => `${this.shape.axisNames[k][0]} ${index}`).join(", ")}`;
    this.build();
  }

  build() {
    const { channels } = this.done;
    if (!channels.some((found) => found.channel === this.channel))
      this.channel = channels[0].channel;
    const name = (k) =>
      (this.shape.frames > 1 ? `frame ${Math.floor(k / this.shape.frameChannels) + 1} ` : "") +
      this.shape.channelNames[k % this.shape.frameChannels];
    const choices = channels.map(({ channel, bits }) => [
      String(channel),
      `${name(channel)}, ${bits.toFixed(1)} bits`,
    ]);
    this.choice =
      choices.length > 6
        ? this.select(choices)
        : segments("Channel", choices, String(this.channel), (value) => this.use(value));
    this.choice.hidden = choices.length < 2;
    this.distribution = el("div.distribution");
    this.attention = el("div.attention");
    this.body.replaceChildren(this.choice, this.distribution, this.attention);
    this.use(this.channel);
  }

  select(choices) {
    const made = el(
      "select",
      choices.map(([value, text]) => el("option", { value }, text)),
    );
    made.value = this.channel;
    made.addEventListener("change", () => this.use(made.value));
    return field("Channel", made);
  }

  use(channel) {
    this.channel = Number(channel);
    const found = this.done.channels.find((one) => one.channel === this.channel);
    this.distribution.replaceChildren(
      el("h4", `What the model expected: ${this.model.values} values`),
      histogram(floats(found.probabilities), found.value),
    );
    this.layers = this.done.attention.filter((layer) => layer.channel === this.channel);
    this.buildAttention();
  }

  buildAttention() {
    if (!this.layers.length) {
      this.cover(null);
      const text = this.done.note ?? "There is no attention to show here.";
      this.attention.replaceChildren(el("p.dim", text));
      return;
    }
    const select = this.layerSelect();
    const strip = el("div.heads", { role: "group", "aria-label": "Heads" });
    const hint = el("p.hint");
    const show = () => {
      this.layer = select.value;
      const layer = this.layers.find((one) => keyOf(one) === this.layer);
      hint.textContent = layer.stage.startsWith("outer") ? `${HEAT} ${SHIFTED}` : HEAT;
      this.buildHeads(layer, strip);
    };
    select.addEventListener("change", show);
    this.attention.replaceChildren(
      el("h4", "Where it looked"),
      field("Layer", select),
      strip,
      hint,
    );
    show();
  }

  /** The layers by their stages; the one that was chosen before stays, at first it is the last. */
  layerSelect() {
    const stages = [...new Set(this.layers.map((layer) => layer.stage))];
    const option = (layer) =>
      el("option", { value: keyOf(layer) }, `${keyOf(layer)}, ${this.along(layer)}`);
    const groups = stages.map((stage) => {
      const layers = this.layers.filter((layer) => layer.stage === stage);
      return el("optgroup", { label: stage }, layers.map(option));
    });
    const select = el("select", groups);
    const known = this.layers.some((layer) => keyOf(layer) === this.layer);
    if (!known) this.layer = keyOf(this.layers[this.layers.length - 1]);
    select.value = this.layer;
    return select;
  }

  along(layer) {
    return `along ${this.shape.axisNames[layer.axis][1]}${layer.causal ? ", masked" : ""}`;
  }

  /** A small picture of the weights of each head, and of their mean; one lies over the picture. */
  buildHeads(layer, strip) {
    const weights = floats(layer.weights);
    const positions = fromBase64(layer.positions, Int32Array);
    const all = [...Array(layer.heads).keys()].map((head) =>
      this.spread(positions, weights, [head]),
    );
    all.unshift(this.spread(positions, weights, [...Array(layer.heads).keys()]));
    if (this.head !== null && this.head !== "mean" && Number(this.head) >= layer.heads)
      this.head = "mean";
    const names = ["mean", ...Array(layer.heads).keys()].map(String);
    this.heads = new Map(names.map((name, k) => [name, all[k]]));
    strip.replaceChildren(
      ...names.map((name) => {
        const canvas = el("canvas.pixels");
        const text = name === "mean" ? "mean" : `head ${Number(name) + 1}`;
        const button = el(
          "button.head",
          { type: "button", "aria-pressed": String(name === this.head) },
          canvas,
          el("span", text),
        );
        paint(canvas, this.image(this.heads.get(name), false));
        button.addEventListener("click", () => {
          this.head = this.head === name ? null : name;
          for (const other of strip.children)
            other.setAttribute("aria-pressed", String(other === button && this.head !== null));
          this.overlay();
        });
        return button;
      }),
    );
    this.overlay();
  }

  /** Weights added up at each pixel, a mean over heads. */
  spread(positions, weights, heads) {
    const at = new Float64Array(this.shape.size / this.shape.channels);
    for (const head of heads) {
      positions.forEach((position, k) => {
        if (position >= 0) at[position] += weights[head * positions.length + k] / heads.length;
      });
    }
    return at;
  }

  look(view) {
    this.view = view;
    if (this.done && this.layers?.length) this.overlay();
  }

  overlay() {
    this.cover(this.head === null ? null : this.image(this.heads.get(this.head), true));
  }

  /** Heat of the slice that is seen; over a picture, what has no weight lets it through. */
  image(weights, over) {
    const plane = this.shape.plane(this.view.direction);
    const { start, down, right } = this.shape.steps(plane, this.view.slice ?? 0);
    const image = new ImageData(plane.width, plane.height);
    const most = weights.reduce((high, weight) => Math.max(high, weight), 1e-12);
    for (let k = 0; k < plane.width * plane.height; k++) {
      const at = Math.floor(
        (start + Math.floor(k / plane.width) * down + (k % plane.width) * right) /
          this.shape.channels,
      );
      const share = weights[at] / most;
      const alpha = over ? (weights[at] > 0 ? 150 + 105 * share : 110) : 255;
      image.data.set([...(weights[at] > 0 ? heat(0.12 + 0.88 * share) : [0, 0, 0]), alpha], 4 * k);
    }
    return image;
  }
}

/** What a layer is called. */
function keyOf(layer) {
  return `${layer.stage}, layer ${layer.layer + 1}`;
}
