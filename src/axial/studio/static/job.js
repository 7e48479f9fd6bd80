// One piece of work at a time in a view: its place in the queue, its progress and its end.

import { Refused, work } from "./api.js";
import { el, plural, problem, say, seconds } from "./dom.js";

export class Job {
  /** `start` is the button that starts the work: it waits while the work runs. */
  constructor(start) {
    this.start = start;
    this.controller = null;
    this.text = el("span");
    this.bar = el("progress", { max: 1 });
    this.cancelButton = el("button", { type: "button", click: () => this.cancel() }, "Cancel");
    this.running = el(
      "div.running",
      { hidden: true },
      this.bar,
      el("div.row", this.text, this.cancelButton),
    );
    this.errors = el("div.errors");
    this.element = el("div.job", this.running, this.errors);
    this.escape = (event) =>
      event.key === "Escape" && !document.querySelector("dialog[open]") && this.cancel();
  }

  get busy() {
    return this.controller !== null;
  }

  cancel() {
    this.controller?.abort();
  }

  /** Run it; the result is null if it was cancelled or refused, and then the page has said why. */
  async run(model, kind, body, on = {}) {
    this.cancel();
    const controller = (this.controller = new AbortController());
    const began = performance.now();
    this.show("Asking …");
    problem(this.errors, "");
    const watched = {
      ...on,
      queued: (data) =>
        this.show(
          data.place
            ? `Waiting: ${plural(data.place, "job")} before this one`
            : "Next in the queue",
        ),
      started: (data) => {
        this.show("Started …");
        on.started?.(data);
      },
      lines: (data) => {
        this.progress(data, "line", began);
        on.lines?.(data);
      },
      progress: (data) => this.progress(data, "tile", began),
    };
    try {
      const result = await work(model, kind, body, { on: watched, signal: controller.signal });
      say(result ? `Done in ${seconds(result.seconds)}` : "Cancelled");
      return result;
    } catch (error) {
      if (error.name === "AbortError") say("Cancelled");
      else if (error instanceof Refused) problem(this.errors, error.message);
      else throw error;
      return null;
    } finally {
      if (this.controller === controller) this.finish();
    }
  }

  show(text) {
    this.running.hidden = false;
    this.text.textContent = text;
    this.bar.removeAttribute("value");
    this.start.hidden = true;
    document.addEventListener("keydown", this.escape);
  }

  progress({ done, of }, noun, began) {
    this.bar.value = done / of;
    const spent = (performance.now() - began) / 1000;
    this.text.textContent = `${noun} ${done} of ${of}, ${seconds(spent)}`;
  }

  finish() {
    const focused = this.running.contains(document.activeElement);
    this.controller = null;
    this.running.hidden = true;
    this.start.hidden = false;
    if (focused) this.start.focus();
    document.removeEventListener("keydown", this.escape);
  }
}
