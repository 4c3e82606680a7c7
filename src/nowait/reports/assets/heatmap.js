// A heatmap of rows (workers) against x (time).
// Exposes: heatmap.
//
// heatmap(box, options) -> {update(changes), zoom(range)}.
//   rows      names, first at the top; values[row]: numbers of equal columns from `start` to `end`, null where there is none
//   log       colours on a logarithmic scale; unit: words after a value; value(number) -> text in the readout
//   xTitle, yTitle, xLabel(from, to), file, label, controls (elements first in the toolbar), hint (words)
//   onzoom(range)  handles zooming instead of the heatmap, so that a live page can fetch the values of this range

const HEAT_LEVELS = 9;
const HEAT_DEFAULTS = {
  rows: [], values: [], start: 0, end: 1, log: false, unit: "", xTitle: "", yTitle: "", file: "heatmap", label: "",
  controls: [], hint: "", onzoom: null, value: (number) => shown(number), xLabel: (from, to) => `${shown(from, 4)} to ${shown(to, 4)} s`,
};

function heatmap(box, given) {
  const options = { ...HEAT_DEFAULTS, ...given };
  const state = { zoom: null };
  const parts = stripParts(box, options);
  const surfaceOf = surface(parts.plot);
  const zoom = (range) => {
    if (options.onzoom) return options.onzoom(range);
    state.zoom = range && clampRange(range, [options.start, options.end]);
    draw();
  };
  const draw = () => {
    parts.reset.hidden = !state.zoom;
    parts.hint.textContent = options.hint;
    const range = heatRange(options);
    parts.key.replaceChildren(...(range ? heatKey(options, range) : []));
    if (options.rows.length && options.end > options.start)
      surfaceOf.draw(heatSpec(options, state, range, zoom, (told) => showReadout(parts.readout, told)));
  };
  parts.reset.addEventListener("click", () => zoom(null));
  const [picture, rows] = [() => surfaceOf.picture, () => heatRows(options)];
  parts.ends.append(...downloadButtons({ file: options.file, picture, rows }));
  onResize(parts.plot, draw);
  draw();
  const update = (changes) => {
    Object.assign(options, changes);
    draw();
  };
  return { update, zoom };
}

/* The parts of charts whose readout is a line of text below the plot. */
function stripParts(box, { controls }) {
  const reset = html("button", { type: "button", class: "reset", hidden: "" }, "Reset zoom");
  const bar = toolbar([...controls, reset]);
  const parts = { reset, ends: bar.querySelector(".ends"), key: html("div", { class: "key" }), plot: html("div") };
  parts.readout = html("div", { class: "readout", role: "status" });
  parts.after = html("div");
  parts.hint = html("p", { class: "hint" });
  box.replaceChildren(bar, parts.key, parts.plot, parts.after, parts.readout, parts.hint);
  return parts;
}

const READOUT_HINT = "Point at the chart, or use the arrow keys, to read values.";

/* told: {title, rows: [[name, value], ...]}; null shows how to get it. */
function showReadout(box, told) {
  if (!told) return box.replaceChildren(html("span", { class: "muted" }, READOUT_HINT));
  const pairs = told.rows.map(([name, value]) => html("span", { class: "pair" }, `${name} `, html("b", {}, value)));
  box.replaceChildren(html("strong", {}, told.title), ...pairs);
}

const heatRange = ({ values, log }) => extent(values.flat(), log);

function heatLevel(value, [low, high], log) {
  if (high <= low) return 0;
  const part = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.min(HEAT_LEVELS - 1, Math.max(0, Math.floor(part * HEAT_LEVELS)));
}

function heatSpec(options, state, range, zoom, readout) {
  const { rows, values, start, end } = options;
  const size = Math.max(3, Math.min(22, Math.round(420 / rows.length)));
  const columns = Math.max(1, ...values.map((row) => row.length));
  const width = (end - start) / columns;
  const scales = {};
  return {
    height: rows.length * size + 70,
    label: `${options.label} ${KEYS}`,
    x: (pixels) => (scales.x = linear(state.zoom ?? [start, end], pixels)),
    y: ([bottom, top]) => (scales.y = rowScale(rows, [top, bottom])),
    yTicks: rowScale(rows, [0, 1]).ticks(Math.max(2, Math.floor((rows.length * size) / 16))),
    xTitle: options.xTitle,
    yTitle: options.yTitle,
    paint: (drawn) => {
      scales.area = drawn.area;
      if (range) drawn.plot.append(...heatShapes(drawn, options, range, width, size));
    },
    stops: rows.length * columns,
    find: (x, y) => {
      const column = Math.floor((scales.x.invert(x) - start) / width);
      return column < 0 || column >= columns ? -1 : scales.y.row(y) * columns + column;
    },
    tell: (stop) => heatTold(options, scales, Math.floor(stop / columns), stop % columns, { width, size }),
    readout,
    zoom,
  };
}

function heatTold(options, { x, y }, row, column, { width, size }) {
  const [from, to] = [options.start + column * width, options.start + (column + 1) * width];
  const box = { x: x(from), width: Math.max(1, x(to) - x(from)), y: y(row) - size / 2, height: size };
  const value = options.values[row][column] ?? null;
  const words = value === null ? "none" : `${options.value(value)} ${options.unit}`.trim();
  return {
    title: `${options.yTitle} ${options.rows[row]}`,
    rows: [["time", options.xLabel(from, to)], ["", words]],
    draw: [svg("rect", { class: "outline", ...box })],
  };
}

/* One path per colour; neighbouring cells of one colour are one rectangle. */
function heatShapes({ x, y }, { values, start, log }, range, width, size) {
  const paths = Array.from({ length: HEAT_LEVELS }, () => "");
  const gap = size > 6 ? 1 : 0;
  values.forEach((row, line) => {
    const levels = row.map((value) => (value === null || (log && value <= 0) ? -1 : heatLevel(value, range, log)));
    for (let from = 0; from < levels.length; ) {
      let to = from + 1;
      while (to < levels.length && levels[to] === levels[from]) to += 1;
      if (levels[from] >= 0) {
        const [left, right] = [x(start + from * width), x(start + to * width)];
        const top = y(line) - size / 2;
        paths[levels[from]] += rectanglePath(left, top, right, top + size - gap);
      }
      from = to;
    }
  });
  return paths.map((d, level) => (d ? svg("path", { class: `heat heat-${level}`, d }) : null)).filter(Boolean);
}

function heatKey(options, [low, high]) {
  const cell = (level) => svg("rect", { class: `heat heat-${level}`, x: level * 16, width: 16, height: 12 });
  const cells = Array.from({ length: HEAT_LEVELS }, (_, level) => cell(level));
  const bar = svg("svg", { width: HEAT_LEVELS * 16, height: 12, "aria-hidden": "true" }, ...cells);
  return [html("span", {}, options.value(low)), bar, html("span", {}, `${options.value(high)} ${options.unit}`.trim())];
}

function heatRows({ rows, values, start, end, xTitle, yTitle, unit }) {
  const lines = [[yTitle || "row", `${xTitle} from`, `${xTitle} to`, unit || "value"]];
  values.forEach((row, line) => {
    const width = (end - start) / row.length;
    row.forEach((value, column) =>
      lines.push([rows[line], start + column * width, start + (column + 1) * width, value]));
  });
  return lines;
}
