// Elements, numbers and searches that every chart uses.
// Exposes: byId, svg, html, colour, dashes, swatch, shown, whole, superscript, below, nearest, between, onResize.

const DASHES = ["", "8 4", "8 3 2 3", "2 3"];
const DIGITS = "-0123456789";
const SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹";
const SVG_NAMESPACE = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
const byId = (id) => document.getElementById(id);

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/* The colour and the dashes of series number `place`: 32 different pairs. */
const colour = (place) => `var(--m${place % 8})`;
const dashes = (place) => DASHES[(place + Math.floor(place / 8)) % DASHES.length];

function swatch(place) {
  const line = svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, "stroke-width": 2.5, "stroke-dasharray": dashes(place) });
  line.style.stroke = colour(place);
  return svg("svg", { class: "swatch", width: 26, height: 12, "aria-hidden": "true" }, line);
}

// Numbers

const superscript = (number) => String(number).replace(/[-0-9]/g, (sign) => SUPERSCRIPTS[DIGITS.indexOf(sign)]);

function shown(value, digits = 3) {
  if (value === null || value === undefined) return "not finite";
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-3)) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${mantissa.replace("-", "−")} × 10${superscript(Number(exponent))}`;
  }
  const decimals = value === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en-US", { maximumFractionDigits: decimals }).replace("-", "−");
}

const whole = (value) => Math.round(value).toLocaleString("en-US");

// Searches in sorted lists

/* The number of sorted values below this one. */
function below(sorted, value) {
  let [from, to] = [0, sorted.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (sorted[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/* The index of the sorted value nearest to this one; -1 if there is none. */
function nearest(sorted, value) {
  if (!sorted.length) return -1;
  const after = below(sorted, value);
  if (after === 0) return 0;
  if (after === sorted.length) return after - 1;
  return value - sorted[after - 1] < sorted[after] - value ? after - 1 : after;
}

/* The value of a curve at `place`, interpolated: on a logarithmic scale if both neighbours are positive. */
function between(places, values, place) {
  const after = below(places, place);
  if (places[after] === place || after === 0) return values[after];
  const [from, to] = [values[after - 1], values[after]];
  if (from === null || to === null || to === undefined) return null;
  const part = (place - places[after - 1]) / (places[after] - places[after - 1]);
  return from > 0 && to > 0 ? from ** (1 - part) * to ** part : from + part * (to - from);
}

/* Calls `redraw` whenever the width of the element changes. */
function onResize(box, redraw) {
  let width = box.clientWidth;
  new ResizeObserver(() => {
    if (box.clientWidth === width || box.clientWidth === 0) return;
    width = box.clientWidth;
    redraw();
  }).observe(box);
}
