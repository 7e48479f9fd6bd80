// Sample sheets of runs over time: one slider for all that are chosen.

import { count, el, slider } from "./dom.js";
import { swatch } from "./plot.js";

export class SheetSlider {
  constructor() {
    this.step = null; // null follows the newest
    this.rows = el("div.sheets");
    this.element = el("section.block");
  }

  /** `runs`: what `/api/runs/RUN` says of each, with its colour. */
  show(runs) {
    this.runs = runs.filter((run) => run.samples.length);
    const steps = [
      ...new Set(this.runs.flatMap((run) => run.samples.map((sample) => sample.step))),
    ].sort((a, b) => a - b);
    if (!steps.length) {
      this.element.replaceChildren(
        el("h3", "Samples"),
        el("p.dim", runs.length ? "No sheet has been drawn yet." : "Choose a run."),
      );
      return;
    }
    const at =
      this.step === null
        ? steps.length - 1
        : Math.max(
            0,
            steps.findLastIndex((step) => step <= this.step),
          );
    const made = slider("Samples at step", { min: 0, max: steps.length - 1, value: at }, (k) =>
      count(steps[k]),
    );
    made.range.addEventListener("input", () => {
      const k = Number(made.range.value);
      this.step = k === steps.length - 1 ? null : steps[k];
      this.render(steps[k]);
    });
    this.element.replaceChildren(el("h3", "Samples"), made, this.rows);
    this.render(steps[at]);
  }

  render(step) {
    this.rows.replaceChildren(
      ...this.runs.map((run) => {
        const sample = run.samples.findLast((one) => one.step <= step) ?? run.samples[0];
        const image = el("img.pixels", {
          src: sample.png,
          alt: `Samples of ${run.name} at step ${sample.step}`,
        });
        return el(
          "figure",
          image,
          el(
            "figcaption",
            swatch({ colour: run.colour }),
            ` ${run.name}, step ${count(sample.step)}`,
          ),
        );
      }),
    );
  }
}
