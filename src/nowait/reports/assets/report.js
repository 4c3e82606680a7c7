// The charts of a report and their controls, drawn from the data in the page.

const report = JSON.parse(byId("data").textContent);
const methods = report.methods;
const AXES = { time: "time (s)", gradients: "gradients", step: "steps" };
const ERROR = report.minimum === 0 ? "loss" : "loss − F*";
const state = { axis: "time", logX: false, logY: true, hidden: new Set() };
const KEYS = "Use the arrow keys to read values.";

// Error curves

function visibleCurves() {
  return methods
    .map((method, place) => ({ method, place, curve: method.curves[state.axis] }))
    .filter(({ place }) => !state.hidden.has(place));
}

/* The range of the drawable values, with a margin. Diverged runs are ignored, so that they do not flatten the others. */
function errorDomain(curves) {
  const steady = curves.filter(({ method }) => !method.diverged);
  const values = (steady.length ? steady : curves)
    .flatMap(({ curve }) => [...curve.middle, ...(curve.low || []), ...(curve.high || [])])
    .filter((value) => value !== null && (!state.logY || value > 0))
    .map((value) => Math.min(1e300, Math.max(state.logY ? 1e-300 : -1e300, value)));
  if (!values.length) return state.logY ? [0.1, 1] : [0, 1];
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  if (state.logY) return low === high ? [low / 2, high * 2] : [low / 1.3, high * 1.3];
  const room = (high - Math.min(0, low) || Math.abs(high) || 1) * 0.05;
  return [low < 0 ? low - room : 0, high + room];
}

function xDomain(curves) {
  const places = curves.flatMap(({ curve }) => curve.x).filter((value) => !state.logX || value > 0);
  if (!places.length) return state.logX ? [1, 10] : [0, 1];
  const low = places.reduce((a, b) => Math.min(a, b));
  const high = places.reduce((a, b) => Math.max(a, b));
  if (low === high) return state.logX ? [low / 2, high * 2] : [low, low + 1];
  return [low, high];
}

const namesOf = (entries) => entries.map(({ method }) => method.name).join(", ") || "no method";

function drawErrors() {
  const box = byId("errors-chart");
  const curves = visibleCurves();
  const drawn = chart(box, {
    height: chartHeight(box),
    label: `${ERROR} against ${AXES[state.axis]} of ${namesOf(curves)}. ${KEYS}`,
    x: (range) => (state.logX ? logarithmic : linear)(xDomain(curves), range),
    y: (range) => (state.logY ? logarithmic : linear)(errorDomain(curves), range),
    xTitle: AXES[state.axis],
    yTitle: ERROR,
  });
  for (const entry of curves) drawn.plot.append(...bandAndLine(drawn, entry));
  follow(drawn, errorCursor(drawn, curves));
  byId("errors-hint").textContent = errorHint(curves);
}

function bandAndLine({ x, y }, { method, place, curve }) {
  const line = linePicture(linePath(x, y, curve.x, curve.middle), place);
  line.dataset.method = method.name;
  if (!curve.low) return [line];
  const band = svg("path", { class: "band", d: bandPath(x, y, curve) });
  band.style.fill = colour(place);
  return [band, line];
}

function linePicture(path, place) {
  const line = svg("path", { class: "line", d: path, "stroke-dasharray": dashes(place) });
  line.style.stroke = colour(place);
  return line;
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

function bandPath(x, y, curve) {
  const drawable = (index) => x.draws(curve.x[index]) && y.draws(curve.low[index]);
  const inside = curve.x.map((at, index) => index).filter(drawable);
  const edge = (values) => (index) => {
    const height = values[index] === null ? -9e3 : Math.max(-9e3, y(values[index]));
    return `${x(curve.x[index]).toFixed(1)} ${height.toFixed(1)}`;
  };
  if (inside.length < 2) return "";
  return `M${inside.map(edge(curve.high)).join("L")}L${inside.reverse().map(edge(curve.low)).join("L")}Z`;
}

function errorCursor({ x, area }, curves) {
  const places = [...new Set(curves.flatMap(({ curve }) => curve.x))].filter(x.draws).sort((a, b) => a - b);
  return {
    stops: places.length,
    find: (pixel) => nearest(places, x.invert(Math.min(area.right, Math.max(area.left, pixel)))),
    tell: (stop) => ({
      at: [x(places[stop]), area.top + 20],
      title: xLabel(places[stop]),
      rows: curves.map((entry) => [swatch(entry.place), entry.method.name, ...valuesAt(entry, places[stop])]),
      draw: [svg("line", { class: "cursor", x1: x(places[stop]), x2: x(places[stop]), y1: area.top, y2: area.bottom })],
    }),
  };
}

function xLabel(place) {
  return state.axis === "time" ? `after ${shown(place, 4)} s` : `after ${whole(Math.round(place))} ${AXES[state.axis]}`;
}

function nearest(sorted, value) {
  if (!sorted.length) return -1;
  const after = below(sorted, value);
  if (after === 0) return 0;
  if (after === sorted.length) return after - 1;
  return value - sorted[after - 1] < sorted[after] - value ? after - 1 : after;
}

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

function valuesAt({ method, curve }, place) {
  const last = curve.x.length - 1;
  if (last < 0) return ["not evaluated"];
  if (place > curve.x[last]) return method.diverged ? ["diverged"] : [shown(curve.middle[last]), "(ended)"];
  const at = (values) => shown(between(curve.x, values, place));
  return curve.low ? [at(curve.middle), `${at(curve.low)} to ${at(curve.high)}`] : [at(curve.middle)];
}

function between(places, values, place) {
  const after = below(places, place);
  if (places[after] === place || after === 0) return values[after];
  const [from, to] = [values[after - 1], values[after]];
  if (from === null || to === null) return null;
  const part = (place - places[after - 1]) / (places[after] - places[after - 1]);
  return from > 0 && to > 0 ? from ** (1 - part) * to ** part : from + part * (to - from);
}

function errorHint(curves) {
  const notes = [];
  if (curves.some(({ curve }) => curve.low))
    notes.push("Lines are medians over runs; bands range from the lowest to the highest run.");
  if (curves.some(({ method }) => method.diverged)) notes.push("Diverged runs leave the chart at the top.");
  if (state.logY && curves.some(({ curve }) => curve.middle.some((value) => value !== null && value <= 0)))
    notes.push("Values of 0 or less cannot be drawn on a logarithmic scale.");
  return notes.join(" ");
}

// Delays

function delaySelection() {
  const chosen = byId("delays-method").value;
  const worker = byId("delays-worker").value;
  return methods
    .map((method, place) => ({ method, place, ...delayCounts(method.delays, worker) }))
    .filter(({ place, counts }) => counts && (chosen === "all" || Number(chosen) === place));
}

function delayCounts(delays, worker) {
  if (worker === "all") return { counts: delays.counts, longest: delays.longest };
  const row = delays.workers.indexOf(Number(worker));
  return row < 0 ? { counts: null } : { counts: delays.by_worker[row], longest: delays.longest_by_worker[row] };
}

function drawDelays() {
  const box = byId("delays-chart");
  const shownMethods = delaySelection();
  const edges = report.edges;
  const highest = Math.max(1, ...shownMethods.flatMap(({ counts }) => counts));
  const drawn = chart(box, {
    height: chartHeight(box),
    label: `Histogram of delays of ${namesOf(shownMethods)}. ${KEYS}`,
    x: (range) => counting([edges[0] * 0.9, Math.max(edges.at(-1), numWorkers(shownMethods)) * 1.15], range),
    y: (range) => counting([0.6, highest * 5], range),
    xTitle: "delay (steps)",
    yTitle: "gradients",
  });
  for (const entry of shownMethods) drawn.plot.append(...steps(drawn, entry, shownMethods.length === 1));
  drawn.picture.append(...delayMarks(drawn, shownMethods));
  follow(drawn, delayCursor(drawn, shownMethods));
  byId("delays-legend").replaceChildren(...shownMethods.map(delayLegend));
  byId("delays-hint").textContent = workersHint(shownMethods[0], "delays", "listed individually");
}

const numWorkers = (entries) => Math.max(1, ...entries.map(({ method }) => method.num_workers));

function delayLegend({ method, place, longest }) {
  return html("span", {}, swatch(place), `${method.name}: τ_max = ${longest ? whole(longest) : "none arrived"}`);
}

function steps({ x, y, area }, { place, counts }, alone) {
  const edges = report.edges;
  let path = `M${x(edges[0])} ${area.bottom + 9}`;
  counts.forEach((count, bin) => {
    const height = count ? y(count).toFixed(1) : area.bottom + 9;
    path += `L${x(edges[bin]).toFixed(1)} ${height}L${x(edges[bin + 1]).toFixed(1)} ${height}`;
  });
  const line = linePicture(`${path}L${x(edges.at(-1))} ${area.bottom + 9}`, place);
  if (!alone) return [line];
  const fill = svg("path", { class: "band", d: line.getAttribute("d") });
  fill.style.fill = colour(place);
  return [fill, line];
}

function delayMarks(drawn, entries) {
  const workers = numWorkers(entries);
  const marks = [mark(drawn, workers, `M = ${whole(workers)}`, 12)];
  if (entries.length === 1 && entries[0].longest) {
    const longest = entries[0].longest;
    marks.push(mark(drawn, longest, `τ_max = ${whole(longest)}`, 30));
  } else marks.push(...entries.filter(({ longest }) => longest).map((entry) => triangle(drawn, entry)));
  return marks;
}

function mark({ x, area }, at, text, down) {
  const left = x(at) > (area.left + area.right) / 2;
  const [beside, anchor] = left ? [-6, "end"] : [6, "start"];
  const words = { class: "mark", x: x(at) + beside, y: area.top + down, "text-anchor": anchor };
  return svg(
    "g",
    {},
    svg("line", { class: "mark", x1: x(at), x2: x(at), y1: area.top, y2: area.bottom }),
    svg("text", words, text),
  );
}

function triangle({ x, area }, { place, longest }) {
  const [at, foot] = [x(longest), area.bottom];
  const sign = svg("path", { d: `M${at} ${foot - 1}l-5 -9h10z` });
  sign.style.fill = colour(place);
  return sign;
}

function delayCursor({ x, area }, entries) {
  const edges = report.edges;
  const bins = edges.length - 1;
  return {
    stops: bins,
    find: (pixel) => Math.min(bins - 1, Math.max(0, below(edges, x.invert(pixel) + 1e-9) - 1)),
    tell: (bin) => ({
      at: [x(edges[bin + 1]), area.top + 20],
      title: binName(edges[bin], edges[bin + 1] - 1),
      rows: entries.map((entry) => [swatch(entry.place), entry.method.name, ...countAndPart(entry.counts, bin)]),
      draw: [svg("rect", { class: "bin", ...binBox(x, area, edges[bin], edges[bin + 1]) })],
    }),
  };
}

const binName = (first, last) =>
  first === last ? `delay ${whole(first)}` : `delays ${whole(first)} to ${whole(last)}`;

function binBox(x, { top, bottom }, from, to) {
  return { x: x(from), width: x(to) - x(from), y: top, height: bottom - top };
}

function countAndPart(counts, bin) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  return [whole(counts[bin]), total ? `${shown((100 * counts[bin]) / total)} %` : "0 %"];
}

function workersHint(entry, part, verb) {
  if (!entry || entry.method[part].workers.length >= entry.method.num_workers) return "";
  return choiceHint(entry.method.num_workers, entry.method[part].workers.length, verb);
}

const choiceHint = (known, count, verb) =>
  `${count} of ${whole(known)} workers are ${verb}: the fastest, the slowest and some in between.`;

// Timeline

const OUTCOMES = {
  applied: "applied: the step used this gradient alone",
  held: "held: added to a sum for a later step",
  dropped: "dropped: not used",
  late: "late: arrived after its ticket was cancelled",
  rejected: "rejected: not a finite vector of the right size",
};

const fillOf = (outcome) => (["applied", "held"].includes(outcome) ? `var(--${outcome})` : `url(#fill-${outcome})`);

function drawTimeline() {
  const box = byId("timeline-chart");
  const method = methods[Number(byId("timeline-method").value)];
  const { lanes, jobs, start, end, num_workers: known } = method.timeline;
  const present = Object.keys(OUTCOMES).filter((outcome) => jobs.outcome.includes(outcome));
  byId("timeline-legend").replaceChildren(...present.map(outcomeLegend));
  byId("timeline-hint").textContent = timelineHint(method, lanes.length, known);
  if (!jobs.lane.length) return showMessage(box, "No gradient arrived.");
  const lane = Math.max(14, Math.min(26, Math.round(440 / lanes.length)));
  const drawn = chart(box, {
    height: lanes.length * lane + 74,
    left: 58,
    label: `Timeline of the first ${jobs.lane.length} jobs of ${method.name}. Use the arrow keys to move between jobs.`,
    x: (range) => linear([start, end], range),
    y: (range) => laneScale(lanes, range),
    xTitle: "time (s)",
    yTitle: "worker",
    yTicks: lanes.map((worker, row) => row),
  });
  const bars = jobs.lane.map((row, index) => bar(drawn, jobs, index, lane));
  drawn.plot.append(...bars);
  follow(drawn, jobCursor(drawn, method, lane));
}

function laneScale(lanes, [bottom, top]) {
  const scale = (row) => top + ((row + 0.5) / lanes.length) * (bottom - top);
  scale.label = (row) => lanes[row];
  return scale;
}

function barShape({ x, y, area }, jobs, index, lane) {
  const from = Math.max(area.left, x(jobs.started[index]));
  const to = Math.min(area.right, x(jobs.time[index]));
  const gap = to - from > 4 ? 1 : 0;
  return { x: from, width: Math.max(1.2, to - from - gap), y: y(jobs.lane[index]) - lane * 0.36, height: lane * 0.72 };
}

function bar(drawn, jobs, index, lane) {
  const shape = svg("rect", { class: "job", rx: 1.5, ...barShape(drawn, jobs, index, lane) });
  shape.style.fill = fillOf(jobs.outcome[index]);
  return shape;
}

function outcomeLegend(outcome) {
  const sample = svg("rect", { width: 22, height: 12, rx: 2 });
  sample.style.fill = fillOf(outcome);
  return html("span", {}, svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, sample), OUTCOMES[outcome]);
}

function timelineHint(method, lanes, known) {
  const notes = ["Jobs that did not arrive (cancelled, lost, or running when the run ended) have no bar."];
  if (method.runs > 1) notes.unshift(`The first of ${method.runs} runs.`);
  if (lanes < known) notes.unshift(choiceHint(known, lanes, "shown"));
  return notes.join(" ");
}

function jobCursor(drawn, method, lane) {
  const { lanes, jobs } = method.timeline;
  const shapes = jobs.lane.map((row, index) => barShape(drawn, jobs, index, lane));
  const inLane = (shape, y) => Math.abs(y - shape.y - shape.height / 2) <= lane / 2;
  const contains = (shape, x, y) => x >= shape.x - 1 && x <= shape.x + shape.width + 1 && inLane(shape, y);
  return {
    stops: shapes.length,
    find: (x, y) => shapes.findIndex((shape) => contains(shape, x, y)),
    tell: (index) => ({
      at: [Math.min(shapes[index].x + shapes[index].width, drawn.area.right), shapes[index].y + lane],
      title: `worker ${lanes[jobs.lane[index]]}, job ${whole(jobs.job[index])}: ${jobs.outcome[index]}`,
      rows: jobRows(jobs, index),
      draw: [svg("rect", { class: "outline", rx: 1.5, ...shapes[index] })],
    }),
  };
}

function jobRows(jobs, index) {
  return [
    ["version", whole(jobs.version[index])],
    ["delay", whole(jobs.delay[index])],
    ["step", jobs.step[index] ? whole(jobs.step[index]) : "none"],
    ["started", `${shown(jobs.started[index], 4)} s`],
    ["arrived", `${shown(jobs.time[index], 4)} s`],
    ["compute time", `${shown(jobs.compute_seconds[index], 4)} s`],
  ];
}

// Shares

function drawShares() {
  const box = byId("shares-chart");
  const place = Number(byId("shares-method").value);
  const { workers, share, num_workers: count } = methods[place].shares;
  const fair = count ? 100 / count : 0;
  const room = Math.max(1, Math.floor(box.clientWidth / 30));
  const every = Math.ceil(workers.length / room);
  const drawn = chart(box, {
    height: Math.round(chartHeight(box) * 0.8),
    left: 54,
    label: `Shares of the workers, ${methods[place].name}; an equal share is ${shown(fair)} percent. ${KEYS}`,
    x: (range) => workerScale(workers, range),
    y: (range) => linear([0, Math.max(fair, ...share.map((part) => 100 * part), 1e-9) * 1.12], range),
    xTitle: "worker, fastest first",
    yTitle: "share of the gradients (%)",
    xTicks: workers.map((worker, row) => row).filter((row) => row % every === 0),
  });
  drawn.plot.append(...share.map((part, row) => shareBar(drawn, place, 100 * part, row)));
  drawn.picture.append(fairLine(drawn, fair));
  follow(drawn, shareCursor(drawn, methods[place].shares));
  byId("shares-hint").textContent = workersHint({ method: methods[place] }, "shares", "shown");
}

function workerScale(workers, [left, right]) {
  const scale = (row) => left + ((row + 0.5) / workers.length) * (right - left);
  scale.width = (right - left) / workers.length;
  scale.row = (pixel) => Math.min(workers.length - 1, Math.max(0, Math.floor((pixel - left) / scale.width)));
  scale.label = (row) => workers[row];
  return scale;
}

function shareBox({ x, y, area }, part, row) {
  const width = Math.max(1, Math.min(48, x.width * 0.72));
  return { x: x(row) - width / 2, width, y: y(part), height: Math.max(0, area.bottom - y(part)) };
}

function shareBar(drawn, place, part, row) {
  const shape = svg("rect", { class: "share", ...shareBox(drawn, part, row) });
  shape.style.fill = colour(place);
  return shape;
}

function fairLine({ area, y }, fair) {
  const line = svg("line", { class: "fair", x1: area.left, x2: area.right, y1: y(fair), y2: y(fair) });
  const words = { class: "mark", x: area.right - 4, y: y(fair) - 7, "text-anchor": "end" };
  return svg("g", {}, line, svg("text", words, `equal share 1/M = ${shown(fair)} %`));
}

function shareCursor(drawn, { workers, share, gradients, seconds, num_workers: count }) {
  return {
    stops: workers.length,
    find: (pixel) => (workers.length ? drawn.x.row(pixel) : -1),
    tell: (row) => ({
      at: [drawn.x(row), drawn.area.top + 20],
      title: `worker ${workers[row]}`,
      rows: [
        ["share", `${shown(100 * share[row])} %`],
        ["relative to 1/M", `${shown(share[row] * count)} ×`],
        ["gradients", whole(gradients[row])],
        ["mean seconds per gradient", seconds[row] === null ? "none arrived" : shown(seconds[row])],
      ],
      draw: [svg("rect", { class: "outline", ...shareBox(drawn, 100 * share[row], row) })],
    }),
  };
}

// Controls

const press = (button, pressed) => button.setAttribute("aria-pressed", String(pressed));

function axisButtons() {
  const buttons = [...byId("errors-axis").querySelectorAll("button")];
  for (const button of buttons)
    button.addEventListener("click", () => {
      state.axis = button.dataset.axis;
      buttons.forEach((other) => press(other, other === button));
      drawErrors();
    });
}

function toggle(id, key) {
  byId(id).addEventListener("click", () => {
    state[key] = !state[key];
    press(byId(id), state[key]);
    drawErrors();
  });
}

function legendButton(method, place) {
  const name = method.diverged ? `${method.name} (diverged)` : method.name;
  const button = html("button", { type: "button", "aria-pressed": "true" }, swatch(place), name);
  button.addEventListener("click", () => {
    if (!state.hidden.delete(place)) state.hidden.add(place);
    press(button, !state.hidden.has(place));
    drawErrors();
  });
  return button;
}

function fillSelect(id, options, redraw) {
  const select = byId(id);
  select.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
  select.addEventListener("change", redraw);
}

const methodOptions = () => methods.map((method, place) => [String(place), method.name]);

function workerOptions() {
  const workers = new Set(methods.flatMap((method) => method.delays.workers));
  return [["all", "all"], ...[...workers].sort((a, b) => a - b).map((worker) => [String(worker), String(worker)])];
}

function themeButton() {
  const root = document.documentElement;
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches);
  const rename = () => (byId("theme").textContent = isDark() ? "Light theme" : "Dark theme");
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    rename();
  });
  preferred.addEventListener("change", rename);
  rename();
}

function drawAll() {
  drawErrors();
  drawDelays();
  drawTimeline();
  drawShares();
}

function start() {
  themeButton();
  axisButtons();
  toggle("errors-log-x", "logX");
  toggle("errors-log-y", "logY");
  byId("errors-legend").append(...methods.map(legendButton));
  fillSelect("delays-method", [["all", "all"], ...methodOptions()], drawDelays);
  fillSelect("delays-worker", workerOptions(), drawDelays);
  fillSelect("timeline-method", methodOptions(), drawTimeline);
  fillSelect("shares-method", methodOptions(), drawShares);
  drawAll();
  let width = byId("errors-chart").clientWidth;
  new ResizeObserver(() => {
    if (byId("errors-chart").clientWidth === width) return;
    width = byId("errors-chart").clientWidth;
    drawAll();
  }).observe(byId("errors-chart"));
}

start();
