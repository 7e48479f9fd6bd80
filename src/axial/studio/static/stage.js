// A picture whose pixels can be pointed at: by mouse, finger or arrow keys.

import { el } from "./dom.js";
import { fit, paint } from "./pixels.js";

/**
 * `press(i, j)` is told of a pixel that is clicked, dragged over or entered from the keyboard,
 * `arrow(i, j)` of one that the arrow keys go to.
 */
export class Stage {
  constructor({ label, press, arrow = () => {}, drag = false, key = () => false }) {
    Object.assign(this, { press, arrow, drag, other: key });
    this.at = { i: 0, j: 0 };
    this.size = 1; // of the cursor, in pixels
    this.canvas = el("canvas.pixels.missing");
    this.overlay = el("canvas.pixels.overlay", { "aria-hidden": "true" });
    this.cursor = el("div.cursor", { "aria-hidden": "true" });
    this.element = el(
      "div.pixelstage",
      { tabindex: "0", role: "application", "aria-label": label },
      this.canvas,
      this.overlay,
      this.cursor,
    );
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("pointerdown", (event) => this.down(event));
    if (drag) this.element.addEventListener("pointermove", (event) => this.hover(event));
  }

  paint(image) {
    paint(this.canvas, image);
    this.place();
  }

  /** Show pixels over the picture; null takes them away. */
  cover(image) {
    this.overlay.hidden = image === null;
    if (image) paint(this.overlay, image);
  }

  resize(room) {
    fit(this.element, this.canvas, room);
  }

  place() {
    const { width, height } = this.canvas;
    this.at = { i: Math.min(this.at.i, height - 1), j: Math.min(this.at.j, width - 1) };
    const edge = (this.size - 1) / 2;
    Object.assign(this.cursor.style, {
      left: `${(100 * (this.at.j - edge)) / width}%`,
      top: `${(100 * (this.at.i - edge)) / height}%`,
      width: `${(100 * this.size) / width}%`,
      height: `${(100 * this.size) / height}%`,
    });
  }

  go(i, j) {
    this.at = { i: Math.max(0, i), j: Math.max(0, j) };
    this.place();
  }

  pixel(event) {
    const place = this.element.getBoundingClientRect();
    const { width, height } = this.canvas;
    const j = Math.floor(((event.clientX - place.left) / place.width) * width);
    const i = Math.floor(((event.clientY - place.top) / place.height) * height);
    return { i: Math.min(height - 1, Math.max(0, i)), j: Math.min(width - 1, Math.max(0, j)) };
  }

  /** A brush is seen before it paints. */
  hover(event) {
    if (event.buttons) return;
    const { i, j } = this.pixel(event);
    this.go(i, j);
  }

  down(event) {
    if (event.button) return;
    const visit = (to) => {
      for (const { i, j } of between(this.at, to)) this.press(i, j);
      this.go(to.i, to.j);
    };
    const first = this.pixel(event);
    this.at = first;
    visit(first);
    this.element.focus({ preventScroll: true });
    event.preventDefault();
    if (!this.drag) return;
    this.element.setPointerCapture(event.pointerId);
    const move = (moved) => visit(this.pixel(moved));
    const end = () => this.element.removeEventListener("pointermove", move);
    this.element.addEventListener("pointermove", move);
    for (const kind of ["pointerup", "pointercancel"])
      this.element.addEventListener(kind, end, { once: true });
  }

  key(event) {
    const far = event.shiftKey ? 4 : 1;
    const moves = {
      ArrowLeft: [0, -far],
      ArrowRight: [0, far],
      ArrowUp: [-far, 0],
      ArrowDown: [far, 0],
    };
    if (event.key in moves) {
      const [down, right] = moves[event.key];
      this.go(this.at.i + down, this.at.j + right);
      this.arrow(this.at.i, this.at.j);
    } else if (event.key === " " || event.key === "Enter") this.press(this.at.i, this.at.j);
    else if (!this.other(event)) return;
    event.preventDefault();
  }
}

/** The pixels from one to another, without holes: a pointer is seen only now and then. */
function between(from, to) {
  const steps = Math.max(Math.abs(to.i - from.i), Math.abs(to.j - from.j), 1);
  return [...Array(steps).keys()].map((k) => ({
    i: Math.round(from.i + ((k + 1) / steps) * (to.i - from.i)),
    j: Math.round(from.j + ((k + 1) / steps) * (to.j - from.j)),
  }));
}
