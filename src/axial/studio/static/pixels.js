// Integers and the pixels that show them: (*axes, c) arrays with -1 where nothing is known yet.

/** Lengths, strides and slices of examples; `frames` of a video may lie in the channels. */
export class Shape {
  constructor({ axes, channels, values, frames = 1 }) {
    Object.assign(this, { axes, channels, values, frames });
    this.size = axes.reduce((product, length) => product * length, channels);
    this.frameChannels = channels / frames;
    this.strides = axes.map((_, k) =>
      axes.slice(k + 1).reduce((product, n) => product * n, channels),
    );
  }

  /** Directions to look from: pictures and lines have one, three axes have three. */
  get directions() {
    return this.axes.length === 3 ? [0, 1, 2] : [0];
  }

  /** What is seen from a direction: rows, columns and how many slices there are. */
  plane(direction = 0) {
    const { axes, frames } = this;
    const n = axes.length;
    const shown =
      n < 3
        ? axes.map((_, k) => k)
        : [0, 1, 2].map((k) => n - 3 + k).filter((k) => k !== n - 3 + direction);
    const [row, column] = shown.length === 2 ? shown : [null, shown[0]];
    const fixed = axes.map((_, k) => k).filter((k) => k !== row && k !== column);
    const depth = fixed.reduce((product, k) => product * axes[k], 1);
    const [height, width] = [row === null ? 1 : axes[row], axes[column]];
    return { row, column, fixed, depth, height, width, slices: depth * frames };
  }

  /** Where the values of a slice's first pixel begin, and the steps to the next row and column. */
  steps(plane, slice) {
    let rest = slice % plane.depth;
    let start = Math.floor(slice / plane.depth) * this.frameChannels;
    for (const axis of [...plane.fixed].reverse()) {
      start += (rest % this.axes[axis]) * this.strides[axis];
      rest = Math.floor(rest / this.axes[axis]);
    }
    return {
      start,
      down: plane.row === null ? 0 : this.strides[plane.row],
      right: this.strides[plane.column],
    };
  }

  /** Names of the channels of one frame. */
  get channelNames() {
    if (this.frameChannels === 3) return ["red", "green", "blue"];
    return this.frameChannels === 1
      ? ["grey"]
      : [...Array(this.frameChannels).keys()].map((k) => `channel ${k}`);
  }

  /** What an index along an axis is called, and a line along it. */
  get axisNames() {
    return (
      [
        [["element", "the line"]],
        [
          ["row", "its column"],
          ["column", "its row"],
        ],
        [
          ["slice", "the slices"],
          ["row", "its column"],
          ["column", "its row"],
        ],
      ][this.axes.length - 1] ?? this.axes.map((_, k) => [`axis ${k}:`, `axis ${k}`])
    );
  }

  describe() {
    const colour = { 1: "grey", 3: "RGB" }[this.frameChannels] ?? `${this.frameChannels} channels`;
    const frames = this.frames > 1 ? `${this.frames} frames of ` : "";
    const levels = this.values === 256 ? "" : `, ${this.values} values`;
    return `${frames}${this.axes.join(" × ")} ${colour}${levels}`;
  }
}

/** One slice as pixels: grey or RGB; of any other number of channels the one that is asked for. */
export function pixelsOf(shape, data, { direction = 0, slice = 0, channel = null } = {}) {
  const plane = shape.plane(direction);
  const { start, down, right } = shape.steps(plane, slice);
  const image = new ImageData(plane.width, plane.height);
  const scale = 255 / Math.max(1, shape.values - 1);
  const single = channel ?? (shape.frameChannels === 3 ? null : 0);
  const from = single === null ? [0, 1, 2] : [single, single, single];
  for (let i = 0, to = 0; i < plane.height; i++) {
    for (let j = 0; j < plane.width; j++, to += 4) {
      const at = start + i * down + j * right;
      const seen = from.map((c) => data[at + c]);
      if (seen.every((value) => value < 0)) continue; // nothing is known: transparent
      for (let c = 0; c < 3; c++) image.data[to + c] = Math.max(0, Math.round(seen[c] * scale));
      image.data[to + 3] = 255;
    }
  }
  return image;
}

/** Show pixels on a canvas of just their size; the style sheet enlarges them without smoothing. */
export function paint(canvas, image) {
  if (canvas.width !== image.width) canvas.width = image.width;
  if (canvas.height !== image.height) canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Size an element so that each pixel of a picture is a square of whole screen pixels. */
export function fit(element, { width, height }, room) {
  const screen = window.devicePixelRatio || 1;
  const most = room / Math.max(width, height);
  const scale = Math.floor(most * screen) / screen || most;
  element.style.width = `${width * scale}px`;
  element.style.height = `${height === 1 ? 24 : height * scale}px`; // a line is given some height
}

/** All slices of an example side by side, as a PNG of its true size. */
export function pngOf(shape, data) {
  const slices = shape.plane().slices;
  const across = Math.min(slices, Math.max(1, Math.ceil(Math.sqrt(slices))));
  const canvas = document.createElement("canvas");
  const first = pixelsOf(shape, data);
  canvas.width = first.width * (slices > 1 ? across : 1);
  canvas.height = first.height * Math.ceil(slices / across);
  const context = canvas.getContext("2d");
  for (let slice = 0; slice < slices; slice++) {
    const image = slice ? pixelsOf(shape, data, { slice }) : first;
    context.putImageData(
      image,
      (slice % across) * image.width,
      Math.floor(slice / across) * image.height,
    );
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Integers as an .npy file of some sizes: one byte each, or two for more than 256 values. */
export function npyOf(sizes, parts, { wide = false } = {}) {
  let header = `{'descr': '${wide ? "<u2" : "|u1"}', 'fortran_order': False, 'shape': (${sizes.join(", ")},), }`;
  header = header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 11) + "\n";
  const opening = new Uint8Array(10 + header.length);
  opening.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  opening.set(new TextEncoder().encode(header), 10);
  const Kind = wide ? Uint16Array : Uint8Array;
  return new Blob([opening, ...parts.map((data) => Kind.from(data))]);
}

/** Examples as `axial sample --out FILE.npy` writes them: (n, *axes, c). */
export function examplesFile(shape, examples) {
  return npyOf([examples.length, ...shape.axes, shape.channels], examples, {
    wide: shape.values > 256,
  });
}

const KINDS = {
  "|u1": Uint8Array,
  "|i1": Int8Array,
  "<u2": Uint16Array,
  "<i2": Int16Array,
  "<u4": Uint32Array,
  "<i4": Int32Array,
  "<i8": BigInt64Array,
  "<u8": BigUint64Array,
};

/** The integers of an .npy file that holds one example of a shape; a text says what is wrong. */
export function exampleIn(buffer, shape) {
  const raw = new Uint8Array(buffer);
  const view = new DataView(buffer);
  if (raw.length < 12 || String.fromCharCode(...raw.subarray(1, 6)) !== "NUMPY")
    throw new Error("not an .npy file");
  const [start, length] =
    raw[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const header = new TextDecoder().decode(raw.subarray(start, start + length));
  const kind = /'descr': *'([^']*)'/.exec(header)?.[1];
  const sizes = (/'shape': *\(([^)]*)\)/.exec(header)?.[1] ?? "")
    .split(",")
    .filter((part) => part.trim())
    .map(Number);
  const wanted = [...shape.axes, shape.channels];
  if (!(kind in KINDS) || /'fortran_order': *True/.test(header))
    throw new Error(`holds ${kind ?? "nothing"}: give integers in C order`);
  if (![wanted, [1, ...wanted]].some((good) => String(good) === String(sizes))) {
    throw new Error(`has shape (${sizes.join(", ")}): the model takes (${wanted.join(", ")})`);
  }
  const Kind = KINDS[kind];
  const body = buffer.slice(start + length, start + length + shape.size * Kind.BYTES_PER_ELEMENT);
  if (body.byteLength < shape.size * Kind.BYTES_PER_ELEMENT)
    throw new Error("ends too early: it is damaged");
  const data = Int32Array.from(new Kind(body), Number);
  if (data.some((value) => value < 0 || value >= shape.values))
    throw new Error(`has values outside 0 to ${shape.values - 1}`);
  return data;
}

/** Colours from black for 0 over red and yellow to white for 1, as in `axial evaluate --map`. */
export function heat(share) {
  return [0, 1, 2].map((k) => Math.round(255 * Math.min(1, Math.max(0, 3 * share - k))));
}

/** Numbers (h, w) as pixels of heat, `most` and beyond white. */
export function heatMap(height, width, numbers, most) {
  const image = new ImageData(width, height);
  for (let k = 0; k < height * width; k++) image.data.set([...heat(numbers[k] / most), 255], 4 * k);
  return image;
}

/** The value below which a share of the numbers lies. */
export function quantile(numbers, share) {
  const sorted = Float64Array.from(numbers).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

export function fromBase64(text, Kind) {
  const binary = atob(text);
  const raw = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
  return new Kind(raw.buffer, 0, raw.length / Kind.BYTES_PER_ELEMENT);
}
