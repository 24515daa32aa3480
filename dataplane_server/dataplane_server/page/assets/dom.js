// Elements, and how they change in place; numbers as text; small charts.

const SVG = new Set(["svg", "path", "rect", "line", "title"]);

/** An element. Names that begin with "data-" or "aria-", and all of SVG's, are attributes; false and null are left out. */
export function h(tag, properties = {}, ...children) {
  const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value == null || value === false) continue;
    if (name === "width%") element.style.width = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** Make the children of an element equal to these. Those with the same data-key stay the same, with focus and scroll. */
export function show(element, ...children) {
  patchChildren(element, h("div", {}, ...children));
}

function patch(old, next) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (name !== "style" && !next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
  patchChildren(old, next);
}

function patchChildren(parent, wanted) {
  const known = new Map();
  for (const child of parent.children) if (child.dataset.key) known.set(child.dataset.key, child);
  let place = parent.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.dataset?.key;
    let old = key ? known.get(key) : place;
    if (old && (old.nodeName !== next.nodeName || (!key && old.dataset?.key))) old = null;
    if (old) {
      known.delete(key); // another one of this key is another element
      if (old !== place) parent.insertBefore(old, place);
      patch(old, next);
      place = old.nextSibling;
    } else {
      parent.insertBefore(next, place);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

// -- text -------------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (number) => ((number ?? 0) < 100_000 ? whole.format(number ?? 0) : short.format(number));
export const rate = (number) => (!number ? "0" : number < 10 ? number.toFixed(1) : count(number));

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (number ??= 0; number >= 1024 && unit < 4; unit++) number /= 1024;
  return `${unit && number < 10 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

export function time(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${+(seconds * 1000).toPrecision(2)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** An age; below ten seconds without tenths, which would only flicker. */
export const age = (seconds) => (seconds == null ? "–" : seconds < 1 ? "now" : seconds < 120 ? `${Math.round(seconds)} s` : time(seconds));

// -- charts -----------------------------------------------------------------------------------------------------------

/** Values as a line with an area, the newest at the right. */
export function spark(values, label, width = 96, height = 22, slots = 60) {
  const most = Math.max(...values, 0);
  const x = (place) => (((place + slots - values.length) * width) / (slots - 1)).toFixed(1);
  const line = values.map((value, place) => `${x(place)},${(height - 1.5 - (value / (most || 1)) * (height - 3)).toFixed(1)}`);
  const drawn = line.length > 1 && most > 0;
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { class: "base", d: `M0,${height - 0.5}H${width}` }),
    drawn && h("path", { class: "area", d: `M${line.join("L")}L${width},${height}L${x(0)},${height}Z` }),
    drawn && h("path", { class: "line", d: `M${line.join("L")}` }),
  );
}

/** A bar for each value, from zero up or down. */
export function bars(values, label, width = 480, height = 36) {
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const y = (value) => (height - 2 - ((value - low) * (height - 4)) / (high - low || 1)).toFixed(1);
  const x = (place) => (((place + 0.5) * width) / values.length).toFixed(1);
  return h("svg", { class: "spark bars", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { class: "base", d: `M0,${y(0)}H${width}` }),
    h("path", { class: "line", d: values.map((value, place) => `M${x(place)},${y(0)}V${y(value)}`).join("") }));
}

/** Parts of a whole, side by side: [class, amount, words]. */
export function bar(parts, total, label) {
  const all = Math.max(total, 1e-9);
  const told = parts.filter(([, amount]) => amount > 0);
  return h(
    "span",
    { class: "bar", role: "img", "aria-label": `${label}: ${told.map(([, amount, words]) => `${count(amount)} ${words}`).join(", ") || "none"}` },
    told.map(([kind, amount, words]) => h("i", { class: kind, title: `${count(amount)} ${words}`, "width%": ((100 * amount) / all).toFixed(2) })),
  );
}
