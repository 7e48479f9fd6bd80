// A picture of any size becomes a picture of the model's size, in view of the user.

import { el } from "./dom.js";
import { paint } from "./pixels.js";

const LARGEST = 2048; // sides of what is kept of a photograph
const SHOWN = 320;

/** The pixels of an image file as it is shown, no side longer than LARGEST. */
export async function decode(file) {
  const whole = await createImageBitmap(file, {
    colorSpaceConversion: "none",
    premultiplyAlpha: "none",
  });
  const scale = Math.min(1, LARGEST / Math.max(whole.width, whole.height));
  const [width, height] = [whole.width, whole.height].map((side) =>
    Math.max(1, Math.round(side * scale)),
  );
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white"; // what is transparent lies on white
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(whole, 0, 0, width, height);
  whole.close();
  return context.getImageData(0, 0, width, height);
}

/** Shares of the source pixels in each target pixel along one axis: means over equal areas. */
function shares(start, length, count) {
  const step = length / count;
  return [...Array(count).keys()].map((k) => {
    const [from, to] = [start + k * step, start + (k + 1) * step];
    const parts = [];
    for (let at = Math.floor(from); at < to - 1e-9; at++) {
      parts.push([at, (Math.min(to, at + 1) - Math.max(from, at)) / step]);
    }
    return parts;
  });
}

/** The part `box` of an image as integers of a shape: averaged over areas, then rounded once. */
export function resample(image, box, shape) {
  const { width, height } = shape.plane();
  const across = shares(box.x, box.width, width);
  const down = shares(box.y, box.height, height);
  const at = (value, most) => Math.min(most - 1, Math.max(0, value));
  const out = new Int32Array(shape.size);
  const row = new Float64Array(width * 3);
  down.forEach((parts, i) => {
    const mean = new Float64Array(width * 3);
    for (const [y, share] of parts) {
      row.fill(0);
      const line = at(y, image.height) * image.width;
      across.forEach((columns, j) => {
        for (const [x, part] of columns) {
          const from = 4 * (line + at(x, image.width));
          for (let c = 0; c < 3; c++) row[3 * j + c] += part * image.data[from + c];
        }
      });
      for (let k = 0; k < row.length; k++) mean[k] += share * row[k];
    }
    for (let j = 0; j < width; j++) {
      const colour = mean.subarray(3 * j, 3 * j + 3);
      for (let c = 0; c < shape.channels; c++) {
        const level =
          shape.channels === 1
            ? 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
            : colour[c % 3];
        out[(i * width + j) * shape.channels + c] = Math.round((level * (shape.values - 1)) / 255);
      }
    }
  });
  return out;
}

/** The picture with a frame around what is used, and beside it what the model will see. */
export class Cropper {
  constructor(image, shape, change) {
    Object.assign(this, { image, shape, change });
    const plane = shape.plane();
    this.aspect = plane.width / plane.height;
    this.box = largest(image, this.aspect);
    this.scale = Math.min(1, SHOWN / Math.max(image.width, image.height));
    if (this.scale === 1)
      this.scale = Math.max(1, Math.floor(SHOWN / Math.max(image.width, image.height)));
    this.canvas = el("canvas");
    paint(this.canvas, image);
    this.handle = el("i.handle", { "aria-hidden": "true" });
    this.frame = el(
      "div.frame",
      {
        tabindex: "0",
        role: "group",
        "aria-label":
          "Part of the picture that is used. Arrow keys move it, plus and minus change its size.",
      },
      this.handle,
    );
    this.stage = el("div.crop", this.canvas, this.frame);
    this.preview = el("canvas.pixels");
    this.element = el("div.cropper", this.stage);
    this.canvas.classList.toggle("pixels", this.scale > 1);
    this.listen();
    this.render();
  }

  get exact() {
    const plane = this.shape.plane();
    return this.image.width === plane.width && this.image.height === plane.height;
  }

  listen() {
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.stage.addEventListener("pointerdown", (event) => this.grab(event));
    this.stage.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.resize(event.deltaY > 0 ? 1.06 : 1 / 1.06);
      },
      { passive: false },
    );
  }

  grab(down) {
    const resizing = down.target === this.handle;
    const start = { ...this.box };
    const factor = this.image.width / this.canvas.clientWidth;
    this.stage.setPointerCapture(down.pointerId);
    const move = (event) => {
      const [x, y] = [
        (event.clientX - down.clientX) * factor,
        (event.clientY - down.clientY) * factor,
      ];
      if (resizing) this.put({ ...start, width: start.width + Math.max(x, y * this.aspect) });
      else this.put({ ...start, x: start.x + x, y: start.y + y });
    };
    const end = () => {
      this.stage.removeEventListener("pointermove", move);
      this.stage.removeEventListener("pointerup", end);
      this.stage.removeEventListener("pointercancel", end);
    };
    this.stage.addEventListener("pointermove", move);
    this.stage.addEventListener("pointerup", end);
    this.stage.addEventListener("pointercancel", end);
    this.frame.focus({ preventScroll: true });
    down.preventDefault();
  }

  key(event) {
    const far = (event.shiftKey ? 0.1 : 0.02) * this.box.width;
    const moves = {
      ArrowLeft: [-far, 0],
      ArrowRight: [far, 0],
      ArrowUp: [0, -far],
      ArrowDown: [0, far],
    };
    if (event.key in moves) {
      const [x, y] = moves[event.key];
      this.put({ ...this.box, x: this.box.x + x, y: this.box.y + y });
    } else if (event.key === "+" || event.key === "=") this.resize(1.06);
    else if (event.key === "-") this.resize(1 / 1.06);
    else return;
    event.preventDefault();
  }

  resize(factor) {
    const width = this.box.width * factor;
    const shift = (this.box.width - width) / 2;
    this.put({ x: this.box.x + shift, y: this.box.y + shift / this.aspect, width });
  }

  /** Take a box, moved and shrunk so that it lies within the picture. */
  put({ x, y, width }) {
    const { image, aspect } = this;
    width = Math.min(Math.max(width, Math.min(8, image.width)), image.width, image.height * aspect);
    const height = width / aspect;
    x = Math.min(Math.max(0, x), image.width - width);
    y = Math.min(Math.max(0, y), image.height - height);
    this.box = { x, y, width, height };
    this.render();
  }

  render() {
    const { image, box } = this;
    const [wide, high] = [image.width * this.scale, image.height * this.scale];
    this.stage.style.width = `${wide}px`;
    this.stage.style.aspectRatio = `${wide} / ${high}`;
    for (const [name, value, most] of [
      ["left", box.x, image.width],
      ["top", box.y, image.height],
      ["width", box.width, image.width],
      ["height", box.height, image.height],
    ]) {
      this.frame.style[name] = `${(100 * value) / most}%`;
    }
    this.data = resample(image, box, this.shape);
    this.change(this.data);
  }
}

/** The largest box of an aspect in the middle of an image. */
export function largest(image, aspect) {
  const width = Math.min(image.width, image.height * aspect);
  const height = width / aspect;
  return { x: (image.width - width) / 2, y: (image.height - height) / 2, width, height };
}
