// Pictures on the page: a card in a grid, and the same enlarged, with its files and its command.

import { commandLine, download, el } from "./dom.js";
import { examplesFile, fit, paint, pixelsOf, pngOf } from "./pixels.js";
import { Player } from "./player.js";

/** How large each of several pictures is shown: a few in one row, more in rows of one length. */
export function roomFor(number, available) {
  const most = Math.max(2, Math.floor((available + GAP) / (SMALL + GAP)));
  const columns = Math.ceil(number / Math.ceil(number / Math.min(most, number > 5 ? 6 : 5)));
  return Math.min(384, Math.floor((available - GAP * (columns - 1)) / columns));
}

const [SMALL, GAP] = [128, 8];

/** One picture of a result: what is known of it so far, and what there is to do with it. */
export class Card {
  /** `facts`: title, name (of files), command; `all` is the list of cards it belongs to. */
  constructor(shape, facts, all, { video = false, actions = [] } = {}) {
    Object.assign(this, { shape, facts, all, video, actions, view: {} });
    this.data = new Int32Array(shape.size).fill(-1);
    this.finished = false;
    this.canvas = el("canvas.pixels.missing");
    this.button = el("button.picture", { type: "button", click: () => enlarge(this) }, this.canvas);
    this.caption = el("figcaption", facts.caption);
    this.element = el("figure.card", this.button, this.caption);
    this.button.setAttribute("aria-label", `${facts.title}: enlarge`);
    this.render();
  }

  update(data) {
    this.data = data;
    this.render();
  }

  finish(facts = {}) {
    Object.assign(this.facts, facts);
    this.finished = true;
    this.canvas.classList.remove("missing");
  }

  look(view) {
    this.view = view;
    this.render();
  }

  resize(room) {
    this.room = room;
    fit(this.canvas, this.canvas, room);
  }

  render() {
    const before = this.canvas.width;
    paint(this.canvas, pixelsOf(this.shape, this.data, this.view));
    if (this.room && this.canvas.width !== before) this.resize(this.room);
    if (shown?.card === this) shown.render();
  }
}

let shown = null;

/** The picture as large as the window allows; arrow keys go to its neighbours, Escape closes. */
export function enlarge(card) {
  shown?.dialog.close();
  shown = new Viewer(card);
  document.body.append(shown.dialog);
  shown.dialog.showModal();
  shown.resize();
}

class Viewer {
  constructor(card) {
    this.canvas = el("canvas.pixels.missing");
    this.body = el("div.facts");
    this.heading = el("h2");
    const close = el(
      "button.icon.close",
      { type: "button", "aria-label": "Close", click: () => this.dialog.close() },
      "✕",
    );
    this.before = el(
      "button.icon",
      { type: "button", "aria-label": "Previous picture", click: () => this.move(-1) },
      "‹",
    );
    this.after = el(
      "button.icon",
      { type: "button", "aria-label": "Next picture", click: () => this.move(1) },
      "›",
    );
    const head = el("header", this.heading, this.before, this.after, close);
    this.stage = el("div.stage", this.canvas);
    this.dialog = el(
      "dialog.viewer",
      { "aria-label": "Picture", tabindex: "-1" },
      head,
      this.stage,
      this.body,
    );
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    this.dialog.addEventListener(
      "click",
      (event) => event.target === this.dialog && this.dialog.close(),
    );
    this.dialog.addEventListener("close", () => this.closed());
    this.resize = this.resize.bind(this);
    window.addEventListener("resize", this.resize);
    this.show(card);
  }

  show(card) {
    this.card = card;
    this.view = {};
    const number = card.all.indexOf(card);
    this.before.hidden = this.after.hidden = card.all.length < 2;
    this.before.disabled = number <= 0;
    this.after.disabled = number === card.all.length - 1;
    this.heading.textContent = card.facts.title;
    const player = new Player(card.shape, (view) => ((this.view = view), this.render()), {
      video: card.video,
    });
    this.body.replaceChildren(player.element, this.actions(), el("div.place"));
    if (card.facts.command)
      this.body.append(
        el("p.hint", "The command that makes it again"),
        commandLine(card.facts.command),
      );
    if (card.facts.note) this.body.append(el("p.hint", card.facts.note));
    // What had the focus may be gone, and with it the arrow keys.
    if (this.dialog.open && !this.dialog.contains(document.activeElement)) this.dialog.focus();
    this.render();
    this.resize();
  }

  actions() {
    const { card } = this;
    const row = el("div.actions");
    const png = async () => download(`${card.facts.name}.png`, await pngOf(card.shape, card.data));
    const npy = () => download(`${card.facts.name}.npy`, examplesFile(card.shape, [card.data]));
    for (const [name, act] of [
      ["PNG", png],
      ["Array (.npy)", npy],
    ]) {
      row.append(el("button", { type: "button", disabled: !card.finished, click: act }, name));
    }
    if (card.facts.gif)
      row.append(
        el("a.button", { href: card.facts.gif, download: `${card.facts.name}.gif` }, "GIF"),
      );
    for (const [name, act] of card.actions) {
      const go = () => (this.dialog.close(), act(card));
      row.append(el("button", { type: "button", disabled: !card.finished, click: go }, name));
    }
    return row;
  }

  render() {
    paint(
      this.canvas,
      pixelsOf(this.card.shape, this.card.data, { ...this.card.view, ...this.view }),
    );
    this.canvas.classList.toggle("missing", !this.card.finished);
    if (this.card.finished)
      for (const button of this.body.querySelectorAll(".actions button")) button.disabled = false;
  }

  resize() {
    const room = Math.min(window.innerWidth - 64, window.innerHeight - 280, 768);
    fit(this.canvas, this.canvas, Math.max(160, room));
  }

  move(by) {
    const next = this.card.all[this.card.all.indexOf(this.card) + by];
    if (next) this.show(next);
  }

  key(event) {
    if (event.target.matches("input, select")) return;
    if (event.key === "ArrowLeft") this.move(-1);
    if (event.key === "ArrowRight") this.move(1);
  }

  closed() {
    window.removeEventListener("resize", this.resize);
    this.dialog.remove();
    shown = null;
    this.card.button.focus();
  }
}
