// Curves of runs in one plot, as SVG: axes with round numbers, values at the pointer.

import { count, el, svg } from "./dom.js";

const COLOURS = 8; // .curve-0 to .curve-7 in the style sheet
const LEFT = 52,
  BOTTOM = 34,
  TOP = 26,
  RIGHT = 12;

/** Of `curves` [{name, colour, dashed, points: [[x, y], ...]}]; `options`: logarithmic, names. */
export class Plot {
  constructor(label) {
    this.drawing = svg("svg", { class: "plot", role: "img", "aria-label": label });
    this.legend = el("div.legend");
    this.reading = el("div.reading", { "aria-live": "off" });
    this.element = el("div.plotbox", this.drawing, this.reading, this.legend);
    this.curves = [];
    this.options = {};
    new ResizeObserver(() => this.render()).observe(this.element);
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
  }

  show(curves, options) {
    this.curves = curves;
    this.options = options;
    this.render();
  }

  render() {
    const { drawing } = this;
    const width = Math.max(240, this.element.clientWidth);
    const height = Math.round(Math.min(420, Math.max(220, width * 0.45)));
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const points = this.curves.flatMap((curve) => curve.points);
    if (!points.length) {
      drawing.replaceChildren(
        svg("text", { x: width / 2, y: height / 2, class: "none" }, "Nothing recorded yet"),
      );
      this.legend.replaceChildren();
      this.marks = null;
      return;
    }
    this.makeScales(points, width, height);
    const marks = svg("g", { class: "marks" });
    const inside = svg(
      "clipPath",
      { id: "inside" },
      svg("rect", {
        x: LEFT,
        y: TOP - 3,
        width: width - LEFT - RIGHT + 4,
        height: height - TOP - BOTTOM + 6,
      }),
    );
    const curves = svg(
      "g",
      { "clip-path": "url(#inside)" },
      ...this.curves.map((curve) => this.curve(curve)),
    );
    drawing.replaceChildren(inside, ...this.axes(width, height), curves, marks);
    this.marks = marks;
    this.legend.replaceChildren(
      ...this.curves.map((curve) => el("span.key", swatch(curve), curve.name)),
    );
  }

  makeScales(points, width, height) {
    const { logarithmic } = this.options;
    const xs = extent(points.map(([x]) => x));
    const ys = [...this.heights(points)];
    if (logarithmic) ys.forEach((y, k) => (ys[k] = Math.log(Math.max(y, 1e-9))));
    const room = (ys[1] - ys[0] || Math.abs(ys[0]) || 1) * 0.06;
    const [low, high] = [ys[0] - room, ys[1] + room];
    this.domain = { xs, low, high };
    this.x = (value) => LEFT + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (width - LEFT - RIGHT);
    this.y = (value) => {
      const at = logarithmic ? Math.log(Math.max(value, 1e-9)) : value;
      return TOP + (1 - (at - low) / (high - low)) * (height - TOP - BOTTOM);
    };
    this.inverse = (px) => xs[0] + ((px - LEFT) / (width - LEFT - RIGHT)) * (xs[1] - xs[0]);
  }

  /** From the least to the most; the first few readings of a long run would flatten all others. */
  heights(points) {
    const all = points.map(([, y]) => y).sort((a, b) => a - b);
    if (this.options.everything || all.length < 100) return [all[0], all[all.length - 1]];
    const middle = all[Math.floor(all.length / 2)];
    const most = Math.min(all[all.length - 1], middle + 4 * (middle - all[0] || 1));
    return [all[0], most];
  }

  axes(width, height) {
    const parts = [];
    const { xs, low, high } = this.domain;
    const value = (at) => (this.options.logarithmic ? Math.exp(at) : at);
    for (const tick of ticks(value(low), value(high), Math.max(3, Math.floor(height / 60)))) {
      const y = this.y(tick);
      if (y < TOP || y > height - BOTTOM) continue;
      parts.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid" }));
      parts.push(svg("text", { x: LEFT - 8, y: y + 4, class: "tick end" }, short(tick)));
    }
    const unit = this.options.unit?.(xs[1] - xs[0]) ?? 1;
    const places = ticks(xs[0] / unit, xs[1] / unit, Math.max(2, Math.floor(width / 110)));
    for (const tick of places.map((place) => place * unit)) {
      const x = this.x(tick);
      parts.push(
        svg("line", { x1: x, x2: x, y1: height - BOTTOM, y2: height - BOTTOM + 4, class: "axis" }),
      );
      parts.push(
        svg(
          "text",
          { x, y: height - BOTTOM + 17, class: `tick ${x > width - 40 ? "end" : "middle"}` },
          this.options.xShown?.(tick) ?? short(tick),
        ),
      );
    }
    parts.push(
      svg("line", {
        x1: LEFT,
        x2: width - RIGHT,
        y1: height - BOTTOM,
        y2: height - BOTTOM,
        class: "axis",
      }),
    );
    parts.push(
      svg("text", { x: width - RIGHT, y: height - 3, class: "tick end" }, this.options.xName ?? ""),
    );
    parts.push(svg("text", { x: 0, y: TOP - 12, class: "tick" }, this.options.yName ?? ""));
    return parts;
  }

  curve({ points, colour, dashed, marked }) {
    const kept = thinned(points, 1200);
    const d = kept
      .map(([x, y], k) => `${k ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`)
      .join("");
    const group = svg(
      "g",
      { class: `curve curve-${colour % COLOURS}${dashed ? " dashed" : ""}` },
      svg("path", { d }),
    );
    if (marked && kept.length < 60)
      for (const [x, y] of kept)
        group.append(svg("circle", { cx: this.x(x), cy: this.y(y), r: 2.5 }));
    return group;
  }

  clamped(y) {
    return Math.max(TOP, this.y(y));
  }

  /** Values of all curves at the pointer. */
  point(event) {
    if (!this.marks) return;
    this.marks.replaceChildren();
    this.reading.replaceChildren();
    if (!event) return;
    const place = this.drawing.getBoundingClientRect();
    const view = this.drawing.viewBox.baseVal;
    const x = this.inverse(((event.clientX - place.left) / place.width) * view.width);
    const [first, last] = this.domain.xs;
    const reach = 0.02 * (last - first);
    for (const curve of this.curves) {
      const near = nearest(curve.points, x);
      const end = curve.points[curve.points.length - 1];
      if (x < curve.points[0][0] - reach || x > end[0] + reach) continue;
      const colour = `dot curve-${curve.colour % COLOURS}`;
      const [cx, cy] = [this.x(near[0]), this.clamped(near[1])];
      this.marks.append(svg("circle", { cx, cy, r: 3.5, class: colour }));
      this.reading.append(el("span.key", swatch(curve), near[1].toFixed(4)));
    }
    const at = Math.min(last, Math.max(first, Math.round(x)));
    this.reading.prepend(el("b", this.options.xShown?.(at) ?? `step ${count(at)}`));
  }
}

/** The colour of a run, wherever it is named. */
export function swatch({ colour, dashed }) {
  const line = svg("line", { x1: 1, x2: 17, y1: 5, y2: 5 });
  return svg(
    "svg",
    {
      class: `swatch curve-${colour % COLOURS}${dashed ? " dashed" : ""}`,
      viewBox: "0 0 18 10",
      "aria-hidden": "true",
    },
    line,
  );
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

/** Round numbers between two, about `wanted` of them. */
export function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return String(Number(value.toPrecision(4)));
}

/** At most `most` points, each the mean of its neighbours in time. */
export function thinned(points, most) {
  const each = Math.ceil(points.length / most);
  if (each === 1) return points;
  const out = [];
  for (let k = 0; k < points.length; k += each) {
    const part = points.slice(k, k + each);
    out.push([0, 1].map((side) => part.reduce((sum, point) => sum + point[side], 0) / part.length));
  }
  return out;
}

/** A running mean: the share `keep` of what was, the rest of what is new, unbiased at the start. */
export function smoothed(points, keep) {
  let [sum, weight] = [0, 0];
  return points.map(([x, y]) => {
    [sum, weight] = [keep * sum + (1 - keep) * y, keep * weight + (1 - keep)];
    return [x, sum / weight];
  });
}

function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  if (high < 0) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) < Math.abs(points[high][0] - x) ? points[low] : points[high];
}
