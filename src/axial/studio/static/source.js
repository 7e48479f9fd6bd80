// Where a picture comes from: a file, a drop, the clipboard, or another view.

import { Cropper, decode, largest, resample } from "./crop.js";
import { download, el, problem } from "./dom.js";
import { exampleIn, examplesFile } from "./pixels.js";

/** A place to drop files on, or to choose them; `take(files)` is told. */
export class DropZone {
  constructor({ text, multiple = false, accept, take }) {
    this.take = take;
    this.input = el("input.visually-hidden", { type: "file", multiple, accept });
    this.input.addEventListener("change", () => {
      if (this.input.files.length) take([...this.input.files]);
      this.input.value = "";
    });
    this.words = el("span.choose", "Choose a file");
    this.element = el("label.drop", this.input, this.words, el("span.dim", text));
    this.listeners = {
      paste: (event) => this.receive(event.clipboardData),
      drop: (event) => this.receive(event.dataTransfer),
      dragover: () => this.element.classList.add("over"),
      dragleave: () => this.element.classList.remove("over"),
    };
  }

  /** Take less room once something was given. */
  shrink() {
    this.words.textContent = "Choose, drop or paste another";
    this.element.classList.add("small");
  }

  receive(data) {
    this.element.classList.remove("over");
    const files = [...(data?.files ?? [])];
    if (files.length) this.take(files);
  }

  /** Take what is dropped or pasted anywhere, while the view is seen. */
  show() {
    for (const [kind, act] of Object.entries(this.listeners)) document.addEventListener(kind, act);
  }

  hide() {
    for (const [kind, act] of Object.entries(this.listeners)) {
      document.removeEventListener(kind, act);
    }
  }
}

/** One example of a model; `change(data)` is told of its integers, -1 where frames are missing. */
export class Source {
  constructor(model, shape, change) {
    Object.assign(this, { model, shape, change, data: null, name: null });
    const clip = model.slices > 1;
    const kind = clip ? "frames in their order, or an .npy file" : "a picture";
    const text = model.takes_pictures
      ? `or drop ${kind} here, or paste it`
      : "or drop an .npy file of one example here";
    const accept = model.takes_pictures ? "image/*,.npy" : ".npy";
    this.zone = new DropZone({ text, accept, multiple: clip, take: (files) => this.read(files) });
    this.about = el("div.chosen", { hidden: true });
    this.errors = el("div.errors");
    this.element = el("div.source", this.about, this.zone.element, this.errors);
  }

  async read(files) {
    problem(this.errors, "");
    try {
      if (files[0].name.toLowerCase().endsWith(".npy")) {
        this.set(exampleIn(await files[0].arrayBuffer(), this.shape), files[0].name);
      } else if (!this.model.takes_pictures)
        throw new Error(`${this.model.id} takes an .npy file of one example`);
      else if (this.model.slices > 1) await this.readFrames(files);
      else await this.readPicture(files[0]);
    } catch (error) {
      const unreadable = error instanceof DOMException;
      problem(
        this.errors,
        `${files[0].name}: ${unreadable ? "the browser cannot read this file; save it as PNG or JPEG" : error.message}`,
      );
    }
  }

  async readPicture(file) {
    const image = await decode(file);
    const { width, height } = this.shape.plane();
    if (image.width === width && image.height === height) {
      this.set(resample(image, largest(image, width / height), this.shape), file.name);
      return;
    }
    const cropper = new Cropper(image, this.shape, (data) => this.cropped?.(data));
    this.set(cropper.data, file.name, cropper, `from ${image.width} × ${image.height}`);
    this.cropped = (data) => {
      this.data = data;
      this.change(data);
    };
  }

  /** Each file is a frame, the largest part of its middle; what is not there is missing. */
  async readFrames(files) {
    const { width, height, slices } = this.shape.plane();
    if (files.length > slices)
      throw new Error(`${files.length} files, but a clip has ${slices} frames`);
    const one = new this.shape.constructor({
      ...this.shape,
      axes: this.shape.axes.slice(-2),
      channels: this.shape.frameChannels,
      frames: 1,
    });
    const data = new Int32Array(this.shape.size).fill(-1);
    for (const [slice, file] of files.entries()) {
      const image = await decode(file);
      const frame = resample(image, largest(image, width / height), one);
      const { start, down, right } = this.shape.steps(this.shape.plane(), slice);
      for (let at = 0; at < height * width; at++) {
        const to = start + Math.floor(at / width) * down + (at % width) * right;
        for (let c = 0; c < one.channels; c++) data[to + c] = frame[at * one.channels + c];
      }
    }
    this.set(data, files[0].name, null, `${files.length} of ${slices} frames`);
  }

  /** Take an example as it is. */
  set(data, name, cropper = null, note = null) {
    Object.assign(this, { data, name, cropped: null });
    const save = () => download(this.fileName, this.file());
    const fact = cropper ? `${note}; move the frame to choose a part` : (note ?? "taken as it is");
    this.about.replaceChildren(
      el("p.name", el("b", name), el("span.dim", `${this.shape.describe()}, ${fact}`)),
    );
    if (cropper) this.about.append(cropper.element);
    this.about.append(
      el("button.link", { type: "button", click: save }, "Save what the model sees (.npy)"),
    );
    this.about.hidden = false;
    this.zone.shrink();
    this.change(data);
  }

  get fileName() {
    return `${this.name.replace(/\.[^.]*$/, "")}.npy`;
  }

  /** The example as the server takes it; what is missing is 0 and must not be kept. */
  file() {
    const blob = examplesFile(this.shape, [this.data.map((value) => Math.max(0, value))]);
    return new File([blob], this.fileName, { type: "application/octet-stream" });
  }
}
