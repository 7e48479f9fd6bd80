// Compress: pictures become an .axl file, an .axl file becomes pictures.

import { Refused } from "./api.js";
import { sizeBars } from "./chart.js";
import { bytes, el, field, plural, seconds } from "./dom.js";
import { Job } from "./job.js";
import { DropZone } from "./source.js";

const KEPT = 6;

export function compressView(app, model) {
  return new CompressView(app, model);
}

class CompressView {
  constructor(app, model) {
    Object.assign(this, { app, model });
    this.zone = new DropZone({
      text: "or drop pictures here, or paste one; drop an .axl file to get its pictures back",
      accept: "image/*,.npy,.axl",
      multiple: true,
      take: (files) => this.take(files),
    });
    this.job = new Job(el("button", { hidden: true }));
    this.label = null;
    const panel = el("div.panel", {}, this.zone.element);
    if (model.classes.length) {
      this.label = el(
        "select",
        {},
        model.classes.map((name, k) => el("option", { value: k }, name)),
      );
      panel.append(field("Class", this.label));
    }
    panel.append(
      this.job.element,
      el(
        "p.hint",
        {},
        `Lossless: ${model.id} predicts each value, and what it expected costs few bits. The same model restores the pictures exactly.`,
      ),
    );
    if (!model.codec)
      panel.prepend(
        el(
          "p.problem",
          {},
          'Compression is not available: install the extra codec (pip install "axial-transformers[codec]").',
        ),
      );
    this.results = el(
      "div.results",
      {},
      el(
        "div.empty",
        {},
        el("p", {}, "Give pictures, get an .axl file and its size beside other formats."),
        el("p.dim", {}, "Give an .axl file, get the pictures."),
      ),
    );
    this.element = el("div.view", {}, panel, this.results);
    this.zone.watch(this.element);
  }

  show() {
    this.zone.show();
  }

  hide() {
    this.zone.hide();
  }

  take(files) {
    const packed = files.find((file) => file.name.toLowerCase().endsWith(".axl"));
    return packed ? this.restore(packed, packed.name) : this.compress(files);
  }

  add(section) {
    this.results.querySelector(".empty")?.remove();
    this.results.prepend(section);
    while (this.results.children.length > KEPT) this.results.lastChild.remove();
  }

  async compress(files) {
    const body = new FormData();
    for (const file of files) body.append("picture", file);
    if (this.label) body.set("label", this.label.value);
    const done = await this.job.run(this.model.id, "compress", body);
    if (!done) return;
    const elements = done.pictures.reduce(
      (sum, one) => sum + one.height * one.width * one.channels,
      0,
    );
    const sizes = done.sizes.map((size) => ({
      ...size,
      ours: size.format === "this model",
      name: size.format === "this model" ? ".axl" : size.format,
    }));
    const name =
      files.length === 1 ? `${files[0].name.replace(/\.[^.]*$/, "")}.axl` : "pictures.axl";
    const checked = el("span.dim");
    const restore = el(
      "button",
      { type: "button", click: () => this.check(done, name, files, checked) },
      "Restore and compare",
    );
    this.add(
      el(
        "section.result",
        {},
        el(
          "header",
          {},
          el("h2", {}, `${plural(files.length, "picture")} in ${bytes(done.bytes)}`),
          el("span.dim", {}, `${done.bits_per_dim.toFixed(2)} bits/dim, ${seconds(done.seconds)}`),
        ),
        el(
          "div.thumbnails",
          {},
          files.map((file) => thumbnail(file)),
        ),
        sizeBars(sizes, elements),
        el(
          "div.actions",
          {},
          el("a.button.primary", { href: done.file, download: name }, `Save ${name}`),
          restore,
          checked,
        ),
      ),
    );
  }

  /** Fetch what was made, restore it, and compare each pixel with what was given. */
  async check(done, name, files, place) {
    place.textContent = "";
    let file;
    try {
      const response = await fetch(done.file);
      if (!response.ok)
        throw new Refused({
          status: response.status,
          kind: "not_found",
          message: "the file is forgotten: compress again",
        });
      file = new File([await response.blob()], name);
    } catch (error) {
      place.textContent = error instanceof Refused ? error.message : "the server does not answer";
      return;
    }
    const restored = await this.restore(file, name);
    if (!restored) return;
    const equal = await Promise.all(
      files.map(async (given, k) => samePixels(given, restored.pictures[k].png)),
    );
    place.textContent = equal.every(Boolean) ? "✓ every pixel is equal" : "✗ pixels differ";
    place.className = equal.every(Boolean) ? "good" : "problem";
  }

  async restore(file, name) {
    const body = new FormData();
    body.set("file", file);
    const done = await this.job.run(this.model.id, "decompress", body);
    if (!done) return null;
    const pictures = done.pictures.map((picture) =>
      el(
        "figure.card",
        {},
        el("img.pixels", {
          src: picture.png,
          alt: picture.name,
          width: Math.max(picture.width, 128),
        }),
        el(
          "figcaption",
          {},
          picture.name,
          el("br"),
          `${picture.width} × ${picture.height} `,
          el(
            "a",
            { href: picture.png, download: `${picture.name.replace(/\.[^.]*$/, "")}.png` },
            "PNG",
          ),
          " ",
          el(
            "a",
            { href: picture.npy, download: `${picture.name.replace(/\.[^.]*$/, "")}.npy` },
            "array",
          ),
        ),
      ),
    );
    const array = done.array
      ? el("a.button", { href: done.array, download: `${name}.npy` }, "All as an array (.npy)")
      : null;
    this.add(
      el(
        "section.result",
        {},
        el(
          "header",
          {},
          el("h2", {}, `${name}: ${plural(done.pictures.length, "picture")}`),
          el("span.dim", {}, `restored in ${seconds(done.seconds)}`),
        ),
        el("div.grid", {}, pictures),
        el("div.actions", {}, array),
      ),
    );
    return done;
  }
}

function thumbnail(file) {
  if (!file.type.startsWith("image/")) return el("span.dim", {}, file.name);
  const url = URL.createObjectURL(file);
  const image = el("img.pixels", { src: url, alt: file.name, title: file.name, height: 64 });
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  return image;
}

async function samePixels(file, url) {
  const [one, other] = await Promise.all([
    pixels(file),
    fetch(url)
      .then((response) => response.blob())
      .then(pixels),
  ]);
  return one.length === other.length && one.every((value, k) => value === other[k]);
}

async function pixels(blob) {
  const bitmap = await createImageBitmap(blob, {
    colorSpaceConversion: "none",
    premultiplyAlpha: "none",
  });
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height).data;
}
