// Settings of runs side by side, with what differs marked.

import { el } from "./dom.js";
import { swatch } from "./plot.js";

let onlyDifferences = null; // what was chosen holds for the next table, too

/** `compared` is what `/api/compare` says. */
export function settingsTable(compared, colour) {
  const { runs, settings } = compared;
  const differing = settings.filter((setting) => setting.differs);
  const box = el("input", {
    type: "checkbox",
    checked: onlyDifferences ?? differing.length > 0,
    disabled: runs.length < 2,
  });
  const body = el("tbody");
  const render = () => {
    const shown = box.checked && runs.length > 1 ? differing : settings;
    body.replaceChildren(
      ...shown.map(({ name, values, differs }) =>
        el(
          differs ? "tr.differs" : "tr",
          el("th", { scope: "row" }, name),
          values.map((value) => el("td", text(value))),
        ),
      ),
    );
    if (!shown.length)
      body.append(
        el("tr", el("td.dim", { colspan: String(runs.length + 1) }, "All settings are the same.")),
      );
  };
  box.addEventListener("change", () => {
    onlyDifferences = box.checked;
    render();
  });
  render();
  const head = el(
    "tr",
    el("th", "Setting"),
    runs.map((run) =>
      el("th", { scope: "col" }, swatch({ colour: colour(run.id) }), ` ${run.name}`),
    ),
  );
  return el(
    "section.block",
    el(
      "header",
      el("h3", "Settings"),
      runs.length > 1 ? el("label.check", box, ` only what differs (${differing.length})`) : null,
    ),
    el(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": "Settings" },
      el("table.settings", el("thead", head), body),
    ),
  );
}

function text(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.map(text).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
