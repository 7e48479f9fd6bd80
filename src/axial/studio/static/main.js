// The shell: which view is shown, with which model.

import { Refused, get } from "./api.js";
import { el, problem } from "./dom.js";
import { bitsView } from "./bits.js";
import { completeView } from "./complete.js";
import { compressView } from "./compress.js";
import { drawView } from "./draw.js";
import { runsView } from "./runs.js";

const VIEWS = {
  draw: drawView,
  complete: completeView,
  bits: bitsView,
  compress: compressView,
  runs: runsView,
};
const TITLES = {
  draw: "Draw",
  complete: "Complete",
  bits: "Where the bits go",
  compress: "Compress",
  runs: "Runs",
};

const place = document.getElementById("view");
const select = document.getElementById("model");

/** What views share: the server, the models, and a picture that one hands to another. */
const app = {
  server: null,
  models: [],
  picture: null,
  get model() {
    return this.models.find((model) => model.id === select.value) ?? null;
  },
  /** Go to another view with a picture that was drawn here. */
  take(view, { data, facts }) {
    const { name, label = null, seed = null } = facts;
    this.picture = { model: select.value, data, name, label, seed };
    location.hash = view;
  },
};

const made = new Map();
let current = null;

/** Views are made once for each model and kept, with all that runs in them. */
function show() {
  const wanted = location.hash.slice(1).split("?")[0];
  if (wanted === "view") return; // the skip link
  const name = wanted in VIEWS ? wanted : "draw";
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[name]} · axial studio`;
  current?.hide?.();
  const key = name === "runs" ? name : `${name} ${select.value}`;
  if (!made.has(key)) {
    if (name !== "runs" && !ready()) return;
    made.set(key, VIEWS[name](app, app.model));
  }
  current = made.get(key);
  select.parentElement.hidden = name === "runs";
  place.replaceChildren(current.element);
  current.show?.();
}

/** Whether the chosen model can work; if not, the page says why. */
function ready() {
  const { model } = app;
  if (model?.state === "ready") return true;
  if (model?.state === "failed") {
    const box = el("div.empty");
    problem(box, `${model.id}: ${model.error}`);
    place.replaceChildren(box);
  } else
    place.replaceChildren(
      el(
        "p.empty",
        model
          ? `Loading ${model.id} …`
          : "There is no model. Start the studio with one: axial studio MODEL",
      ),
    );
  return false;
}

function offer() {
  const chosen = select.value;
  const text = (model) => (model.state === "ready" ? model.id : `${model.id} (${model.state})`);
  const before = [...select.options].map((option) => option.text);
  if (before.length && String(before) === String(app.models.map(text))) return; // an open list stays open
  select.replaceChildren(
    ...app.models.map((model) => el("option", { value: model.id }, text(model))),
  );
  select.value = app.models.some((model) => model.id === chosen)
    ? chosen
    : (app.models[0]?.id ?? "");
  select.disabled = app.models.length < 2;
}

/** Ask for the models until none is loading. */
async function loadModels() {
  for (;;) {
    app.models = (await get("/api/models")).models;
    offer();
    if (!current || !place.contains(current.element)) show();
    if (!app.models.some((model) => model.state === "loading")) return;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

window.addEventListener("hashchange", () => {
  show();
  window.scrollTo(0, 0);
});
select.addEventListener("change", show);
// A file that is dropped where nobody takes it would replace the page.
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => event.preventDefault());
}

try {
  app.server = await get("/api");
  const { version, device } = app.server;
  const facts = `axial ${version}${device ? `, on ${device}` : ""}`;
  document.body.append(el("footer", facts, el("a", { href: "/docs" }, "HTTP API")));
  await loadModels();
} catch (error) {
  if (!(error instanceof Refused)) throw error;
  problem(place, error.message);
}
