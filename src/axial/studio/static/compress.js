// Compress: pictures become an .axl file, an .axl file becomes pictures.

import { named, sizeBars } from "./chart.js";
import { bytes, el, field, plural, problem, reveal, seconds } from "./dom.js";
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
    const panel = el("div.panel", this.zone.element);
    if (model.classes.length) {
      this.label = el(
        "select",
        model.classes.map((name, k) => el("option", { value: k }, name)),
      );
      panel.append(field("Class", this.label));
    }
    panel.append(
      this.job.element,
      el(
        "p.hint",
        `Lossless: ${model.id} predicts each value, and what it expected costs few bits. The same model restores the pictures exactly.`,
      ),
    );
    if (!model.codec)
      panel.prepend(
        el(
          "p.problem",
          'Compression is not available: install the extra codec (pip install "axial-transformers[codec]").',
        ),
      );
    this.results = el(
      "div.results",
      el(
        "div.empty",
        el("p", "Give pictures, get an .axl file and its size beside other formats."),
        el("p.dim", "Give an .axl file, get the pictures."),
      ),
    );
    this.element = el("div.view", panel, this.results);
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

  /** Show a result above the earlier ones. */
  add(...parts) {
    this.results.querySelector(".empty")?.remove();
    this.results.prepend(el("section.result", parts));
    reveal(this.results.firstChild);
    while (this.results.children.length > KEPT) this.results.lastChild.remove();
  }

  async compress(files) {
    const body = new FormData();
    for (const file of files) body.append("picture", file);
    if (this.label) body.set("label", this.label.value);
    const done = await this.job.run(this.model.id, "compress", body);
    if (!done) return;
    const name = files.length === 1 ? `${stem(files[0].name)}.axl` : "pictures.axl";
    const checked = el("span.checked");
    const check = () => this.check(done, name, files, checked);
    const facts = `${done.bits_per_dim.toFixed(2)} bits/dim, ${seconds(done.seconds)}`;
    const title = el("h2", `${plural(files.length, "picture")} in ${bytes(done.bytes)}`);
    const save = el("a.button.primary", { href: done.file, download: name }, `Save ${name}`);
    const restore = el("button", { type: "button", click: check }, "Restore and compare");
    this.add(
      el("header", title, el("span.dim", facts)),
      el("div.thumbnails", files.map(thumbnail)),
      sizeBars(done.sizes.map((size) => named(size, ".axl"))),
      el("div.actions", save, restore, checked),
    );
  }

  /** Fetch what was made, restore it, and compare it with what was given. */
  async check(done, name, files, place) {
    place.replaceChildren();
    const response = await fetch(done.file).catch(() => null);
    if (!response?.ok) {
      problem(place, "the file is no longer there: compress again");
      return;
    }
    const restored = await this.restore(new File([await response.blob()], name), name);
    if (!restored) return;
    const pairs = files.map((given, k) => samePixels(given, restored.pictures[k].png));
    const equal = (await Promise.all(pairs)).every(Boolean);
    // A browser decodes a JPEG, or what is transparent, in its own way.
    const text = equal ? "every pixel is equal" : "the checksum of all pixels is right";
    place.replaceChildren(el("span.good", `✓ ${text}`));
  }

  async restore(file, name) {
    const body = new FormData();
    body.set("file", file);
    const done = await this.job.run(this.model.id, "decompress", body);
    if (!done) return null;
    const array = { href: done.array, download: `${stem(name)}.npy` };
    this.add(
      el(
        "header",
        el("h2", `${name}: ${plural(done.pictures.length, "picture")}`),
        el("span.dim", `restored in ${seconds(done.seconds)}`),
      ),
      el("div.grid", done.pictures.map(restoredPicture)),
      done.array ? el("div.actions", el("a.button", array, "All as an array (.npy)")) : null,
    );
    return done;
  }
}

function restoredPicture({ name, png, npy, width, height }) {
  const image = el("img.pixels", { src: png, alt: name, width: Math.max(width, 128) });
  const link = (href, kind) => el("a", { href, download: `${stem(name)}.${kind}` }, kind);
  const files = el("span", link(png, "png"), " ", link(npy, "npy"));
  return el("figure.card", image, el("figcaption", `${name}, ${width} × ${height} `, files));
}

function stem(name) {
  return name.replace(/\.[^.]*$/, "");
}

function thumbnail(file) {
  if (!file.type.startsWith("image/")) return el("span.dim", file.name);
  const url = URL.createObjectURL(file);
  const image = el("img.pixels", { src: url, alt: file.name, title: file.name });
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  return image;
}

async function samePixels(file, url) {
  if (!file.type.startsWith("image/")) return false;
  const restored = await (await fetch(url)).blob();
  const [one, other] = await Promise.all([pixels(file), pixels(restored)]);
  return one.length === other.length && one.every((value, k) => value === other[k]);
}

async function pixels(blob) {
  const how = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const bitmap = await createImageBitmap(blob, how);
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height).data;
}
