// Small charts: a distribution over values, and sizes as bars.

import { bytes, count, el, svg } from "./dom.js";

const [WIDE, HIGH, ABOVE] = [512, 150, 6];

/** The probabilities of all values, with the true one marked; the pointer reads them off. */
export function histogram(probabilities, truth) {
  const most = Math.max(...probabilities);
  const step = WIDE / probabilities.length;
  const top = (p) => ABOVE + (HIGH - ABOVE) * (1 - p / most);
  let path = `M0 ${HIGH}`;
  probabilities.forEach((p, value) => {
    path += `L${(value * step).toFixed(2)} ${top(p).toFixed(2)}L${((value + 1) * step).toFixed(2)} ${top(p).toFixed(2)}`;
  });
  path += `L${WIDE} ${HIGH}Z`;
  const middle = (truth + 0.5) * step;
  const drawing = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDE} ${HIGH}`,
      class: "histogram",
      role: "img",
      preserveAspectRatio: "none",
      "aria-label": `Probabilities of ${probabilities.length} values; the true value ${truth} has ${percent(probabilities[truth])}`,
    },
    svg("path", { d: path, class: "area" }),
    svg("line", { x1: middle, x2: middle, y1: 0, y2: HIGH, class: "truth" }),
    svg("line", { x1: 0, x2: WIDE, y1: HIGH, y2: HIGH, class: "axis" }),
  );
  const reading = el("p.reading");
  const tell = (value) => {
    const what = value === truth ? "true value" : "value";
    reading.textContent = `${what} ${value}: ${percent(probabilities[value])}, ${(-Math.log2(probabilities[value])).toFixed(2)} bits`;
  };
  drawing.addEventListener("pointermove", (event) => {
    const place = drawing.getBoundingClientRect();
    const value = Math.floor(((event.clientX - place.left) / place.width) * probabilities.length);
    tell(Math.min(probabilities.length - 1, Math.max(0, value)));
  });
  drawing.addEventListener("pointerleave", () => tell(truth));
  tell(truth);
  const last = probabilities.length - 1;
  const scale = el(
    "div.scale",
    { "aria-hidden": "true" },
    el("span", "0"),
    el("span", count(Math.round(last / 2))),
    el("span", count(last)),
  );
  return el("div.chart", drawing, scale, reading);
}

function percent(share) {
  return share >= 0.001
    ? `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`
    : share.toExponential(1);
}

/** A size of the API, with our own under a name of the page's. */
export function named(size, own) {
  const ours = size.format === "this model";
  return { ...size, ours, name: ours ? own : size.format };
}

/** Sizes under their names, the longest bar the largest; `ours` stands out. */
export function sizeBars(sizes) {
  const most = Math.max(...sizes.map((size) => size.bytes ?? 0));
  const rows = sizes.map(({ name, bytes: n, bits_per_dim: each, ours }) => {
    if (n === null || n === undefined)
      return el(
        "tr",
        el("th", { scope: "row" }, name),
        el("td.dim", { colspan: "3" }, "not available"),
      );
    const bar = el("i.length");
    bar.style.width = `${Math.max(0.5, (100 * n) / most)}%`;
    return el(
      ours ? "tr.ours" : "tr",
      el("th", { scope: "row" }, name),
      el("td.number", bytes(Math.ceil(n))),
      el("td.number", each.toFixed(2)),
      el("td.wide", bar),
    );
  });
  const head = el(
    "tr",
    el("th", ""),
    el("th.number", "size"),
    el("th.number", "bits/dim"),
    el("th"),
  );
  return el("table.sizes", el("thead", head), el("tbody", rows));
}
