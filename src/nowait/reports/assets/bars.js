// Bars and histograms.
// Exposes: barChart, histogram.
//
// barChart(box, options) -> {update(changes)}: one bar per name.
//   names, values, place (colour), xTitle, yTitle, line {value, text} (a horizontal line), describe(index) -> rows
// histogram(box, options) -> {update(changes)}: counts in bins with common edges, logarithmic axes.
//   edges; series [{name, place, counts, longest}]: `longest` is marked on the x axis; marks [{x, text}];
//   xTitle, yTitle, binName(first, last) -> words
// Both have file, label, controls (elements first in the toolbar), hint.

const BAR_DEFAULTS = {
  names: [], values: [], place: 0, xTitle: "", yTitle: "", line: null, describe: () => [], file: "bars", label: "",
  controls: [], hint: "", height: (box) => Math.round(chartHeight(box) * 0.75),
};

function barChart(box, given) {
  const options = { ...BAR_DEFAULTS, ...given };
  const parts = stripParts(box, options);
  const surfaceOf = surface(parts.plot);
  const draw = () => {
    parts.hint.textContent = options.hint;
    if (options.names.length) surfaceOf.draw(barSpec(parts, options));
  };
  const rows = () => [[options.xTitle, options.yTitle], ...options.names.map((name, at) => [name, options.values[at]])];
  parts.ends.append(...downloadButtons({ file: options.file, picture: () => surfaceOf.picture, rows }));
  onResize(parts.plot, draw);
  draw();
  const update = (changes) => {
    Object.assign(options, changes);
    draw();
  };
  return { update };
}

function barSpec(parts, options) {
  const { names, values, line } = options;
  const highest = Math.max(line ? line.value : 0, ...values, 1e-9);
  const every = Math.ceil(names.length / Math.max(1, Math.floor(parts.plot.clientWidth / 34)));
  const scales = {};
  return {
    height: options.height(parts.plot),
    label: `${options.label} Arrow keys read values.`,
    x: (range) => (scales.x = rowScale(names, range)),
    y: (range) => (scales.y = linear([0, highest * 1.12], range)),
    xTicks: names.map((_, at) => at).filter((at) => at % every === 0),
    xTitle: options.xTitle,
    yTitle: options.yTitle,
    paint: (drawn) => {
      scales.area = drawn.area;
      const bar = (value, at) => svg("rect", { class: "bar", ...barBox(scales, value, at) });
      drawn.plot.append(...values.map((value, at) => painted(bar(value, at), "fill", options.place)));
      if (line) drawn.over.append(...barLine(drawn, line));
    },
    stops: names.length,
    find: (pixel) => (pixel < scales.area.left || pixel > scales.area.right ? -1 : scales.x.row(pixel)),
    tell: (at) => ({
      title: `worker ${names[at]}`,
      rows: options.describe(at),
      draw: [svg("rect", { class: "outline", ...barBox(scales, values[at], at) })],
    }),
    readout: (told) => showReadout(parts.readout, told),
  };
}

function barBox({ x, y, area }, value, at) {
  const width = Math.max(1, Math.min(48, x.size * 0.72));
  return { x: x(at) - width / 2, width, y: y(value), height: Math.max(0, area.bottom - y(value)) };
}

function barLine({ area, y }, { value, text }) {
  const words = { class: "mark", x: area.right - 4, y: y(value) - 7, "text-anchor": "end" };
  const line = { class: "fair", x1: area.left, x2: area.right, y1: y(value), y2: y(value) };
  return [svg("line", line), svg("text", words, text)];
}

// Histogram

const HISTOGRAM_DEFAULTS = {
  edges: [1, 2], series: [], marks: [], xTitle: "", yTitle: "", file: "histogram", label: "", controls: [], hint: "",
  binName: (first, last) => (first === last ? whole(first) : `${whole(first)} to ${whole(last)}`),
};

function histogram(box, given) {
  const options = { ...HISTOGRAM_DEFAULTS, ...given };
  const parts = lineParts(box, { controls: options.controls, tools: [] }, {}, () => {});
  const surfaceOf = surface(parts.plot);
  const names = legend(parts.legend, { items: options.series, onchange: () => draw(), idle: "all delays" });
  const draw = () => {
    parts.hint.textContent = options.hint;
    surfaceOf.draw(histogramSpec(parts.plot, options, options.series.filter(names.visible), names));
  };
  const rows = () => {
    const heading = ["series", "from", "to", options.yTitle];
    return [heading, ...options.series.flatMap(({ name, counts }) =>
      counts.map((count, bin) => [name, options.edges[bin], options.edges[bin + 1] - 1, count]))];
  };
  const picture = () => surfaceOf.picture;
  parts.ends.append(...downloadButtons({ file: options.file, picture, rows, names: names.names }));
  onResize(parts.plot, draw);
  const update = (changes) => {
    Object.assign(options, changes);
    names.update(options.series);
    draw();
  };
  draw();
  return { update };
}

function histogramSpec(box, options, series, names) {
  const { edges, marks } = options;
  const highest = Math.max(1, ...series.flatMap(({ counts }) => counts));
  const farthest = Math.max(edges.at(-1), ...marks.map(({ x }) => x));
  const bins = edges.length - 1;
  const scales = {};
  return {
    height: Math.round(chartHeight(box) * 0.85),
    label: `${options.label} Arrow keys read values.`,
    x: (range) => (scales.x = counting([edges[0] * 0.9, farthest * 1.15], range)),
    y: (range) => (scales.y = counting([0.6, highest * 3], range)),
    xTitle: options.xTitle,
    yTitle: options.yTitle,
    paint: (drawn) => {
      scales.area = drawn.area;
      for (const each of series) drawn.plot.append(...binShapes(drawn, edges, each, series.length === 1));
      drawn.over.append(...marks.map((mark, row) => binMark(drawn, mark, row)));
    },
    stops: bins,
    find: (pixel) => Math.min(bins - 1, Math.max(0, below(edges, scales.x.invert(pixel) + 1e-9) - 1)),
    tell: (bin) => ({
      title: options.binName(edges[bin], edges[bin + 1] - 1),
      cells: Object.fromEntries(series.map((each) => [each.name, countCell(each.counts, bin)])),
      draw: [svg("rect", { class: "bin", ...binBox(scales, edges[bin], edges[bin + 1]) })],
    }),
    readout: (told) => (told ? names.show(told.title, told.cells) : names.show(null, totalCells(options.series))),
  };
}

function binBox({ x, area }, from, to) {
  return { x: x(from), width: x(to) - x(from), y: area.top, height: area.bottom - area.top };
}

function binShapes({ x, y, area }, edges, { place, counts, longest }, alone) {
  const foot = area.bottom + 9;
  let path = `M${x(edges[0]).toFixed(1)} ${foot}`;
  counts.forEach((count, bin) => {
    const height = count ? y(count).toFixed(1) : foot;
    path += `L${x(edges[bin]).toFixed(1)} ${height}L${x(edges[bin + 1]).toFixed(1)} ${height}`;
  });
  path += `L${x(edges.at(-1)).toFixed(1)} ${foot}`;
  const shapes = [painted(svg("path", { class: "line", d: path, "stroke-dasharray": dashes(place) }), "stroke", place)];
  if (alone) shapes.unshift(painted(svg("path", { class: "band", d: path }), "fill", place));
  const triangle = `M${x(longest)} ${area.bottom - 1}l-5 -9h10z`;
  if (longest) shapes.push(painted(svg("path", { class: "longest", d: triangle }), "fill", place));
  return shapes;
}

function binMark({ x, area }, { x: at, text }, row) {
  const [beside, anchor] = x(at) > (area.left + area.right) / 2 ? [-6, "end"] : [6, "start"];
  const words = { class: "mark", x: x(at) + beside, y: area.top + 12 + 18 * row, "text-anchor": anchor };
  const line = { class: "mark", x1: x(at), x2: x(at), y1: area.top, y2: area.bottom };
  return svg("g", {}, svg("line", line), svg("text", words, text));
}

const total = (counts) => counts.reduce((sum, count) => sum + count, 0);

function countCell(counts, bin) {
  const all = total(counts);
  return { value: whole(counts[bin]), range: all ? `${shown((100 * counts[bin]) / all)} %` : "none" };
}

function totalCells(series) {
  return Object.fromEntries(series.map(({ name, counts, longest }) =>
    [name, { value: whole(total(counts)), range: longest ? `longest ${whole(longest)}` : "none" }]));
}
