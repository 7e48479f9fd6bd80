// Elements, words and files: what every view needs.

/**
 * An element: `el("p.note", {title: "..."}, "text", child)`; the facts may be left out. Functions
 * become listeners, booleans and values properties, all else attributes; null is no child.
 */
export function el(kind, ...parts) {
  const facts = parts[0]?.constructor === Object ? parts.shift() : {};
  const [tag, ...classes] = kind.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(facts)) {
    if (value === undefined || value === null) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else if (typeof value === "boolean" || name === "value") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...parts.flat().filter((part) => part !== null && part !== undefined));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG, whose attributes are all text. */
export function svg(tag, facts = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A labelled field: its name, the control, a button beside it, a line of explanation below. */
export function field(name, control, hint, beside) {
  if (!control.id) control.id = `field-${++fields}`;
  const parts = [
    el("label", { for: control.id }, name),
    beside ? el("div.joined", control, beside) : control,
  ];
  if (hint) {
    parts.push(el("p.hint", { id: `${control.id}-hint` }, hint));
    control.setAttribute("aria-describedby", `${control.id}-hint`);
  }
  return el("div.field", parts);
}
let fields = 0;

/** A slider whose value stands beside its name. */
export function slider(name, facts, shown = (value) => value, hint) {
  const range = el("input", { type: "range", ...facts });
  const output = el("output", shown(Number(range.value)));
  range.addEventListener("input", () => (output.textContent = shown(Number(range.value))));
  const made = field(name, range, hint);
  made.firstChild.append(output);
  made.set = (value) => {
    range.value = value;
    output.textContent = shown(Number(range.value));
  };
  made.range = range;
  return made;
}

/** Choices of which one is taken, as radio buttons that look like one control; arrow keys move. */
export function segments(name, choices, chosen, change) {
  const group = `segments-${++fields}`;
  const set = el("fieldset.segments", el("legend", name));
  const row = set.appendChild(el("div.row"));
  for (const [value, text] of choices) {
    const radio = el("input", { type: "radio", name: group, value, checked: value === chosen });
    radio.addEventListener("change", () => change(value));
    row.append(el("label", radio, el("span", text)));
  }
  set.choose = (value) => {
    const found = row.querySelector(`input[value="${CSS.escape(value)}"]`);
    if (found) found.checked = true;
  };
  return set;
}

/** A whole number from a field, or the value it had: a half-typed number is no request. */
export function whole(input, least, most) {
  const value = Math.round(Number(input.value));
  const good = input.value !== "" && Number.isFinite(value) ? value : least;
  return Math.min(most, Math.max(least, good));
}

/** Tell people who do not see the page what has happened. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/** A button that copies a text and says so. */
export function copyButton(text, name = "Copy") {
  const button = el("button.quiet", { type: "button" }, name);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyByHand(text); // no clipboard where the page is not on localhost or https
    }
    button.textContent = "Copied";
    say("Copied");
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

function copyByHand(text) {
  const area = el("textarea.visually-hidden", { value: text });
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A command line with its copy button. */
export function commandLine(text) {
  const words = text.split(" ").flatMap((word) => [el("span", word), " "]);
  return el("div.command", el("code", { tabindex: "0" }, words), copyButton(text));
}

/** Bring a new result into view where it lies below the window. */
export function reveal(element) {
  if (element.getBoundingClientRect().top > 0.6 * window.innerHeight)
    element.scrollIntoView({ block: "start", behavior: "smooth" });
}

/** Hand a file to the user. */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** An error in its place; an empty text removes it. */
export function problem(place, text) {
  place.replaceChildren(...(text ? [el("p.problem", { role: "alert" }, text)] : []));
}

export const count = (n) => n.toLocaleString("en");

export function bytes(n) {
  if (n < 10_000) return `${count(n)} B`;
  return n < 10_000_000 ? `${(n / 1000).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

export function seconds(s) {
  if (s < 60) return `${s.toFixed(s < 1 ? 2 : s < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(s / 60);
  return minutes < 60
    ? `${minutes} min ${Math.floor(s % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
