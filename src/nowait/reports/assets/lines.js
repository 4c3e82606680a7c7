// A line chart of several series: bands, linear or logarithmic axes, zoom, smoothing, event marks, legend, downloads.
// Exposes: lineChart, smoothed.
//
// lineChart(box, options) -> {update(changes), zoom(range), state}. The box gets a toolbar, the plot and the legend.
//   series    [{name, place, x, y, low, high, note, ended, points}]: x ascending; y, low and high may contain null;
//             low and high are the edges of a band; `place` selects the colour; `ended` is the word shown after the
//             last point; off: true leaves the series out of the choice of the y axis (it diverged); points: true
//             marks points;
//             tops [{x, text}] are crosses at the top, for values off the axis; last: the value shown without a cursor;
//             good: true writes the note in the colour of success
//   xTitle, yTitle, logX, logY, smoothing (0 to 0.99), height(box) -> pixels
//   xLabel    (x) => words for the title of the readout
//   marks     [{x, kind, text}]: vertical lines; kind is join, death, resume, decision, checkpoint or any class name event-…
//   marksTitle  {kind: words} for the list of marks below the plot
//   controls  elements to put first in the toolbar; tools: which of "logX", "logY", "smooth" to offer
//   idle      the title of the legend while there is no cursor
//   file      the name of downloads; label: a sentence for screen readers; hint(series, state) -> words below the plot
// `update(changes)` draws again with some options changed; zoom, smoothing and hidden series stay as they are.

const LINE_DEFAULTS = {
  series: [], marks: [], marksTitle: {}, controls: [], tools: ["logX", "logY", "smooth"], logX: false, logY: false,
  smoothing: 0, file: "chart", label: "", xTitle: "", yTitle: "", hint: () => "", height: chartHeight,
  idle: "last values",
  xLabel: (x) => shown(x, 4),
};
const NEAR_PIXELS = 6;

function lineChart(box, given) {
  const options = { ...LINE_DEFAULTS, ...given };
  const state = { logX: options.logX, logY: options.logY, smoothing: options.smoothing, zoom: null };
  const parts = lineParts(box, options, state, () => draw());
  const surfaceOf = surface(parts.plot);
  const names = legend(parts.legend, { items: options.series, onchange: () => draw(), idle: options.idle });
  const zoom = (range) => {
    state.zoom = range && clampRange(range, lineDomain(options.series, state, "x"));
    draw();
  };
  const draw = () => {
    const series = options.series.filter(names.visible).map((each) => withSmoothing(each, state));
    parts.reset.hidden = !state.zoom;
    parts.hint.textContent = options.hint(series, state);
    parts.marks.replaceChildren(...markLegend(options));
    surfaceOf.draw(lineSpec(parts.plot, options, state, series, { zoom, names }));
  };
  parts.reset.addEventListener("click", () => zoom(null));
  parts.ends.append(...downloadButtons({
    file: options.file,
    picture: () => surfaceOf.picture,
    rows: () => lineRows(options, options.series.filter(names.visible)),
    names: names.names,
  }));
  onResize(parts.plot, draw);
  const update = (changes) => {
    Object.assign(options, changes);
    for (const key of ["logX", "logY", "smoothing"]) if (key in changes) state[key] = changes[key];
    names.update(options.series);
    draw();
  };
  draw();
  return { update, zoom, state };
}

function lineParts(box, options, state, draw) {
  const switches = { logX: "log x", logY: "log y" };
  const tools = Object.entries(switches).filter(([key]) => options.tools.includes(key)).map(([key, text]) =>
    toggleButton(text, state[key], (pressed) => {
      state[key] = pressed;
      draw();
    }, { "data-tool": key }),
  );
  const controls = [...options.controls];
  if (tools.length) controls.push(html("div", { role: "group", "aria-label": "Scales", class: "choice" }, ...tools));
  if (options.tools.includes("smooth"))
    controls.push(slider("smooth", { max: 0.99, value: state.smoothing }, (value) => {
      state.smoothing = value;
      draw();
    }));
  const reset = html("button", { type: "button", class: "reset", hidden: "" }, "Reset zoom");
  const bar = toolbar([...controls, reset]);
  const parts = { reset, ends: bar.querySelector(".ends"), plot: html("div"), legend: html("div") };
  parts.marks = html("div", { class: "marks" });
  parts.hint = html("p", { class: "hint" });
  box.classList.add("line-chart");
  box.replaceChildren(
    bar,
    html("div", { class: "beside" }, html("div", { class: "main" }, parts.plot, parts.marks), parts.legend),
    parts.hint,
  );
  return parts;
}

// Domains

function lineDomain(series, { logX, logY, zoom }, axis) {
  const room = series.some(({ points }) => points) ? 0.03 : 0;
  if (axis === "x") return padded(extent(series.flatMap(({ x }) => x), logX), logX, room);
  const steady = series.filter((each) => !each.off);
  const values = (steady.length ? steady : series).flatMap((each) => valuesInside(each, zoom));
  const range = extent(values.map((value) => bounded(value, logY)), logY);
  const from = range && !logY && range[0] > 0 && range[0] < 0.6 * range[1] ? [0, range[1]] : range;
  return padded(from, logY, 0.05);
}

const bounded = (value, log) =>
  value === null || value === undefined ? null : Math.min(1e300, Math.max(log && value > 0 ? 1e-300 : -1e300, value));

function valuesInside({ x, y, low, high }, zoom) {
  const first = zoom ? Math.max(0, below(x, zoom[0]) - 1) : 0;
  const last = zoom ? below(x, zoom[1]) + 1 : x.length;
  return [y, low, high].filter(Boolean).flatMap((values) => values.slice(first, last));
}

function padded(range, log, part) {
  if (!range) return log ? [0.1, 1] : [0, 1];
  const [low, high] = range;
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** part, high * (high / low) ** part];
  const around = (Math.abs(low) || 1) * 0.1;
  if (low === high) return part ? [low - around, high + around] : [low, low + 1];
  return [low === 0 ? 0 : low - part * (high - low), high + part * (high - low)];
}

// Smoothing

/* The exponential moving average of values, corrected at the start; on a logarithmic scale if `log`. Gaps stay gaps. */
function smoothed(values, weight, log) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null || (log && value <= 0)) return value;
    sum = weight * sum + (1 - weight) * (log ? Math.log(value) : value);
    total = weight * total + (1 - weight);
    return log ? Math.exp(sum / total) : sum / total;
  });
}

function withSmoothing(series, { smoothing, logY }) {
  if (!smoothing) return series;
  return { ...series, raw: series.y, y: smoothed(series.y, smoothing, logY), low: undefined, high: undefined };
}

// Drawing

function lineSpec(box, options, state, series, { zoom, names }) {
  const xDomain = state.zoom ?? lineDomain(options.series, state, "x");
  const places = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b)
    .filter((at) => at >= xDomain[0] && at <= xDomain[1]);
  const scales = {};
  return {
    height: options.height(box),
    label: `${options.label} ${KEYS}`,
    x: (range) => (scales.x = (state.logX ? logarithmic : linear)(xDomain, range)),
    y: (range) => (scales.y = (state.logY ? logarithmic : linear)(lineDomain(series, state, "y"), range)),
    xTitle: options.xTitle,
    yTitle: options.yTitle,
    paint: (drawn) => {
      scales.area = drawn.area;
      for (const each of series) drawn.plot.append(...seriesShapes(drawn, each));
      drawn.plot.append(...markShapes(drawn, options.marks));
    },
    stops: places.length,
    find: (pixel) => nearest(places, scales.x.invert(Math.min(scales.area.right, Math.max(scales.area.left, pixel)))),
    tell: (stop, pixelY) => lineTold(options, series, scales, places[stop], pixelY),
    readout: (told) => {
      if (told) names.show(told.title, told.cells, told.near);
      else names.show(null, lastCells(options.series));
    },
    zoom,
  };
}

function seriesShapes({ x, y, area }, each) {
  const shapes = [];
  const { place } = each;
  if (each.low) shapes.push(painted(svg("path", { class: "band", d: bandPath(x, y, each) }), "fill", place));
  const raw = each.raw ? linePath(x, y, each.x, each.raw) : "";
  if (raw) shapes.push(painted(svg("path", { class: "raw", d: raw }), "stroke", place));
  const path = linePath(x, y, each.x, each.y);
  const line = svg("path", { class: "line", "data-name": each.name, d: path, "stroke-dasharray": dashes(place) });
  shapes.push(painted(line, "stroke", place));
  if (each.points) shapes.push(...pointShapes(x, y, each));
  for (const top of each.tops ?? []) if (x.draws(top.x)) shapes.push(topShape(x(top.x), area.top, place));
  return shapes;
}

const topShape = (at, top, place) =>
  painted(svg("path", { class: "cross", d: `M${at - 5} ${top + 3}l10 10m-10 0l10 -10` }), "stroke", place);

function pointShapes(x, y, each) {
  const pairs = each.x.map((at, index) => [at, each.y[index]]);
  const drawable = pairs.filter(([at, value]) => x.draws(at) && y.draws(value));
  return drawable.map(([at, value]) => circle("point", x(at), y(value), each.place));
}

function circle(kind, cx, cy, place) {
  return painted(svg("circle", { class: kind, cx: cx.toFixed(1), cy: cy.toFixed(1), r: 3.5 }), "fill", place);
}

function painted(shape, property, place) {
  shape.style[property] = colour(place);
  return shape;
}

/* A line with gaps where a value cannot be drawn. Values far above the chart are clipped just outside it. */
function linePath(x, y, places, values) {
  let path = "";
  let pen = "M";
  places.forEach((at, index) => {
    const drawable = x.draws(at) && y.draws(values[index]);
    if (drawable) path += `${pen}${x(at).toFixed(1)} ${Math.max(-9e3, y(values[index])).toFixed(1)}`;
    pen = drawable ? "L" : "M";
  });
  return path;
}

function bandPath(x, y, { x: places, low, high }) {
  const inside = places.map((at, index) => index).filter((index) => x.draws(places[index]) && y.draws(low[index]));
  const edge = (values) => (index) => {
    const height = values[index] === null ? -9e3 : Math.max(-9e3, y(values[index]));
    return `${x(places[index]).toFixed(1)} ${height.toFixed(1)}`;
  };
  if (inside.length < 2) return "";
  return `M${inside.map(edge(high)).join("L")}L${inside.reverse().map(edge(low)).join("L")}Z`;
}

// Readout

function lineTold(options, series, { x, y, area }, place, pixelY) {
  const at = x(place);
  const near = pixelY === null ? null : nearestSeries(series, y, place, pixelY);
  const marks = options.marks.filter((mark) => x.draws(mark.x) && Math.abs(x(mark.x) - at) <= NEAR_PIXELS);
  const words = marks.slice(0, 3).map((mark) => mark.text);
  if (marks.length > 3) words.push(`${marks.length - 3} more`);
  const shapes = [svg("line", { class: "cursor", x1: at, x2: at, y1: area.top, y2: area.bottom })];
  for (const each of series) shapes.push(...cursorDot(each, y, place, at));
  return {
    title: [options.xLabel(place), ...words].join(" · "),
    cells: Object.fromEntries(series.map((each) => [each.name, cellAt(each, place)])),
    near: near && near.name,
    draw: shapes,
  };
}

function cursorDot(each, y, place, at) {
  const last = each.x.length - 1;
  const value = last < 0 || place > each.x[last] ? null : between(each.x, each.y, place);
  return y.draws(value) ? [circle("dot", at, y(value), each.place)] : [];
}

function nearestSeries(series, y, place, pixelY) {
  let [best, least] = [null, 24];
  for (const each of series) {
    const value = between(each.x, each.y, place);
    const distance = y.draws(value) ? Math.abs(y(value) - pixelY) : Infinity;
    if (distance < least) [best, least] = [each, distance];
  }
  return best;
}

function cellAt(each, place) {
  const last = each.x.length - 1;
  if (last < 0) return { value: "not evaluated" };
  if (place > each.x[last]) return each.off ? lastCell(each) : { ...lastCell(each), value: endedValue(each) };
  const top = each.tops && each.tops.find((entry) => entry.x === place);
  if (top) return { value: top.text };
  const at = (values) => shown(between(each.x, values, place));
  return each.low ? { value: at(each.y), range: `${at(each.low)} to ${at(each.high)}` } : { value: at(each.y) };
}

function lastValue(each) {
  if (!each.x.length) return "not evaluated";
  return each.off ? each.note || "diverged" : shown(each.y.at(-1));
}

const endedValue = (each) => `${lastValue(each)} (${each.ended ?? "ended"})`;

/* A series with a band always has a range, so that rows keep their height. */
function lastCell(each) {
  const band = each.low && each.low.length ? `${shown(each.low.at(-1))} to ${shown(each.high.at(-1))}` : "";
  return { value: each.last ?? lastValue(each), range: each.last || each.off ? "" : band };
}

function lastCells(series) {
  return Object.fromEntries(series.map((each) => [each.name, lastCell(each)]));
}

function lineRows({ xTitle, yTitle }, series) {
  const rows = [["series", xTitle, yTitle, "lowest", "highest"]];
  for (const { name, x, y, low, high } of series)
    x.forEach((at, index) => rows.push([name, at, y[index], low ? low[index] : "", high ? high[index] : ""]));
  return rows;
}

// Event marks

const eventClass = (kind) => `event event-${kind}`;

/* One line per pixel column and kind, so that a thousand events stay drawable. */
function markShapes({ x, area }, marks) {
  const columns = new Map();
  for (const mark of marks) {
    const at = x.draws(mark.x) ? Math.round(x(mark.x)) : NaN;
    if (at >= area.left && at <= area.right) columns.set(`${mark.kind} ${at}`, [mark.kind, at]);
  }
  return [...columns.values()].map(([kind, at]) =>
    svg("g", { class: eventClass(kind) },
      svg("line", { x1: at, x2: at, y1: area.top, y2: area.bottom }),
      svg("path", { d: `M${at} ${area.top + 8}l-5 -8h10z` })));
}

function markLegend({ marks, marksTitle }) {
  const counts = new Map();
  for (const { kind } of marks) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].map(([kind, count]) => {
    const sign = svg("svg", { width: 12, height: 10, "aria-hidden": "true" });
    sign.append(svg("g", { class: eventClass(kind) }, svg("path", { d: "M6 9l-5 -8h10z" })));
    return html("span", {}, sign, `${marksTitle[kind] ?? kind} (${whole(count)})`);
  });
}
