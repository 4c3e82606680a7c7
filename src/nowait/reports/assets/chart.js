// Chart primitives: elements, number formats, scales, axes, and a cursor with a tooltip.

const DASHES = ["", "8 4", "8 3 2 3", "2 3"];
const DIGITS = "-0123456789";
const SUPERSCRIPTS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹";
const byId = (id) => document.getElementById(id);

// Elements

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(byId("patterns").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const colour = (place) => `var(--m${place % 8})`;
const dashes = (place) => DASHES[(place + Math.floor(place / 8)) % DASHES.length];

function swatch(place) {
  const line = svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, "stroke-width": 2.5, "stroke-dasharray": dashes(place) });
  line.style.stroke = colour(place);
  return svg("svg", { width: 26, height: 12, "aria-hidden": "true" }, line);
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

const whole = (value) => value.toLocaleString("en-US");

// Scales: functions from values to pixels, with their ticks and labels

function linear([from, to], [start, end]) {
  const scale = (value) => start + ((value - from) / (to - from)) * (end - start);
  scale.invert = (pixel) => from + ((pixel - start) / (end - start)) * (to - from);
  scale.draws = (value) => value !== null;
  scale.ticks = (count) => linearTicks(from, to, count);
  scale.label = (value) => linearLabel(value, to - from, Math.max(Math.abs(from), Math.abs(to)));
  return scale;
}

/* Uses enough digits to distinguish neighbouring ticks. */
function linearLabel(value, span, largest) {
  if (value === 0) return "0";
  const digits = Math.ceil(Math.log10(largest / span)) + 3;
  return shown(value, Math.min(12, Math.max(3, digits)));
}

function linearTicks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [10, 5, 2, 1].find((multiple) => rough / power >= multiple / 1.45 || multiple === 1) * power;
  const ticks = [];
  for (let index = Math.ceil(from / step); index * step <= to + step * 1e-9; index += 1) ticks.push(index * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

function logarithmic([from, to], range) {
  const inner = linear([Math.log10(from), Math.log10(to)], range);
  const scale = (value) => inner(Math.log10(value));
  scale.invert = (pixel) => 10 ** inner.invert(pixel);
  scale.draws = (value) => value !== null && value > 0;
  scale.ticks = (count) => logTicks(from, to, count);
  scale.label = (value) => logLabel(value, from < 1e-4 || to > 1e6);
  return scale;
}

/* A logarithmic scale for counts: only integer ticks. */
function counting(domain, range) {
  const scale = logarithmic(domain, range);
  const ticks = scale.ticks;
  scale.ticks = (count) => ticks(count).filter(Number.isInteger);
  return scale;
}

function logTicks(from, to, count) {
  const first = Math.ceil(Math.log10(from) - 1e-9);
  const last = Math.floor(Math.log10(to) + 1e-9);
  const decades = last - first + 1;
  if (decades < 3) return fineTicks(from, to, count);
  const every = Math.ceil(decades / Math.max(2, count));
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  return ticks;
}

function fineTicks(from, to, count) {
  for (const multiples of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1)
      for (const multiple of multiples) ticks.push(Number((multiple * 10 ** power).toPrecision(6)));
    const inside = ticks.filter((tick) => tick >= from * 0.999 && tick <= to * 1.001);
    if (inside.length <= count || multiples.length === 1) return inside;
  }
  return [];
}

function logLabel(value, wide) {
  const power = Math.round(Math.log10(value));
  const isPower = Math.abs(Math.log10(value) - power) < 1e-9;
  return wide && isPower && power !== 0 ? `10${superscript(power)}` : shown(value, 2);
}

// A chart: an SVG with axes in a container, and a cursor controlled by pointer, touch and arrow keys

function chart(box, { height, left = 66, label, x, y, xTitle, yTitle, xTicks, yTicks }) {
  const width = Math.max(280, box.clientWidth);
  const area = { left, right: width - 14, top: 28, bottom: height - 46 };
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": label });
  const result = { box, picture, area, width, height };
  result.x = x([area.left, area.right]);
  result.y = y([area.bottom, area.top]);
  const across = xTicks || result.x.ticks(Math.max(3, Math.floor((area.right - area.left) / 95)));
  const upward = yTicks || result.y.ticks(Math.max(3, Math.floor((area.bottom - area.top) / 36)));
  picture.append(xAxis(result, across), yAxis(result, upward), titles(result, xTitle, yTitle));
  result.plot = clipped(result);
  box.replaceChildren(picture, tip());
  return result;
}

function xAxis({ area, x }, ticks) {
  const group = svg("g");
  for (const tick of ticks) {
    const at = x(tick);
    group.append(svg("line", { class: "grid", x1: at, x2: at, y1: area.top, y2: area.bottom }));
    group.append(svg("text", { x: at, y: area.bottom + 18, "text-anchor": "middle" }, x.label(tick)));
  }
  group.append(svg("line", { class: "frame", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  return group;
}

function yAxis({ area, y }, ticks) {
  const group = svg("g");
  for (const tick of ticks) {
    const at = y(tick);
    group.append(svg("line", { class: "grid", x1: area.left, x2: area.right, y1: at, y2: at }));
    group.append(svg("text", { x: area.left - 8, y: at + 4, "text-anchor": "end" }, y.label(tick)));
  }
  return group;
}

function titles({ area, height }, xTitle, yTitle) {
  return svg(
    "g",
    {},
    svg("text", { class: "title", x: (area.left + area.right) / 2, y: height - 8, "text-anchor": "middle" }, xTitle),
    svg("text", { class: "title", x: 4, y: 14 }, yTitle),
  );
}

let clips = 0;
function clipped({ picture, area }) {
  const id = `clip-${(clips += 1)}`;
  const size = { width: area.right - area.left, height: area.bottom - area.top + 2 };
  const plot = svg("g", { "clip-path": `url(#${id})` });
  picture.append(svg("clipPath", { id }, svg("rect", { x: area.left, y: area.top - 1, ...size })), plot);
  return plot;
}

const tip = () => html("div", { class: "tip", role: "status", hidden: "" });

/* stops: number of cursor positions; find(x, y): the position at a point, or -1;
   tell(stop): the tooltip of a position, {at: [x, y], title, rows, draw: elements}. */
function follow({ box, picture, width }, { stops, find, tell }) {
  const cursor = svg("g");
  picture.append(cursor);
  let current = -1;
  const show = (stop) => {
    current = stop;
    const told = stop < 0 ? null : tell(stop);
    cursor.replaceChildren(...(told ? told.draw : []));
    showTip(box, told);
  };
  const locate = (event) => {
    const bounds = picture.getBoundingClientRect();
    const zoom = width / bounds.width;
    return find((event.clientX - bounds.left) * zoom, (event.clientY - bounds.top) * zoom);
  };
  for (const kind of ["pointermove", "pointerdown"]) picture.addEventListener(kind, (event) => show(locate(event)));
  picture.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && show(-1));
  picture.addEventListener("blur", () => show(-1));
  picture.addEventListener("keydown", (event) => {
    const next = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: stops - 1, Escape: -1 }[event.key];
    if (next === undefined || stops === 0) return;
    event.preventDefault();
    show(event.key === "Escape" ? -1 : Math.min(stops - 1, Math.max(0, next)));
  });
}

function showTip(box, told) {
  const note = box.querySelector(".tip");
  note.hidden = told === null;
  if (!told) return;
  const rows = told.rows.map(tipRow);
  note.replaceChildren(html("strong", {}, told.title), html("table", {}, html("tbody", {}, ...rows)));
  const zoom = box.clientWidth / Number(box.querySelector("svg").getAttribute("viewBox").split(" ")[2]);
  const [x, y] = told.at.map((pixel) => pixel * zoom);
  const isNarrow = box.clientWidth < 560;  // show the tooltip below the chart, so that it does not cover the data
  const beside = x + 16 + note.offsetWidth <= box.clientWidth ? x + 16 : x - 16 - note.offsetWidth;
  note.style.left = `${Math.max(0, Math.min(beside, box.clientWidth - note.offsetWidth))}px`;
  note.style.top = `${isNarrow ? box.querySelector("svg").clientHeight : Math.max(0, y - 12)}px`;
}

/* Cells: [name, value], or [swatch, name, value] with an optional range. */
function tipRow(cells) {
  const kinds = typeof cells[0] === "string" ? ["", "value"] : ["", "", "value", "range"];
  return html("tr", {}, ...cells.map((cell, place) => html("td", { class: kinds[place] }, cell)));
}

function showMessage(box, text) {
  box.replaceChildren(html("p", { class: "hint" }, text));
}

const chartHeight = (box) => Math.round(Math.min(430, Math.max(300, box.clientWidth * 0.45)));
