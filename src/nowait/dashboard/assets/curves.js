// The charts of losses, metrics and speed, with all runs that are shown.
// Exposes: progressChart, speedChart, marksOf.

const AXES = { time: "time (s)", step: "steps", gradients: "gradients" };
const MARK_KINDS = { joined: "join", lost: "death", resumed: "resume" };
const MARK_WORDS = {
  join: "worker joined", death: "worker lost", resume: "resumed", decision: "decision of the method",
  checkpoint: "checkpoint on disk",
};
/* The speed is drawn over columns with about as many arrivals, if that leaves the fewest columns, and as many seconds, if
   that leaves the usual number. */
const [LEAST_ARRIVALS, FEWEST_COLUMNS, LEAST_SECONDS, USUAL_COLUMNS] = [20, 4, 1, 40];
const SPEEDS = {
  steps: ["steps per second", ({ steps, width }, column) => (steps[column] - (steps[column - 1] ?? 0)) / width],
  arrivals: ["gradients per second", (grid, column) => grid.arrivals[column] / grid.width],
  delay: ["mean delay", (grid, column) => grid.delay[column]],
  longest: ["longest delay", (grid, column) => (grid.arrivals[column] ? grid.longest[column] : null)],
};

/* The events of a run as marks of a chart; `axis` is time or step. */
function marksOf(run, axis = "time") {
  if (!run) return [];
  const place = axis === "time" ? (time) => time : (time) => stepAt(run, time);
  const events = run.marks.map(([time, kind, worker, workers]) => {
    const who = worker < 0 ? "" : workers > 1 ? ` (${workers} workers from ${worker} on)` : ` (${worker})`;
    const text = `${MARK_WORDS[MARK_KINDS[kind]]}${who} at ${shown(time, 4)} s`;
    return { x: place(time), kind: MARK_KINDS[kind], text };
  });
  const decided = run.decisions.map(([time, sentence]) => (
    { x: place(time), kind: "decision", text: `${sentence} (at ${shown(time, 4)} s)` }));
  const saved = run.checkpoints.filter((step) => step > 0).map((step) => (
    { x: axis === "time" ? timeOf(run, step) : step, kind: "checkpoint", text: `checkpoint of step ${whole(step)}` }));
  return axis === "gradients" ? [] : [...events, ...decided, ...saved].filter(({ x }) => x !== null);
}

const seriesBase = ({ name, place, diverged, state }) => ({
  name, place, note: diverged ? "diverged" : "", ended: state === "running" ? "now" : "ended",
});

/* Loss, error or another metric against time, steps or gradients. */
function progressChart(box) {
  const state = { axis: "time", value: "loss", minimum: "" };
  const input = html("input", { type: "search", inputmode: "decimal", id: "minimum", placeholder: "F*" });
  input.setAttribute("aria-label", "F*, which is subtracted from losses");
  const valueBox = selectBox("show", [["loss", "loss"], ["error", "error: loss − F*"]], "loss", (value) => {
    state.value = value;
    redraw();
  });
  const axes = [["time", "time"], ["step", "steps"], ["gradients", "gradients"]];
  const axisBox = choice("Horizontal axis", axes, "time", (axis) => {
    state.axis = axis;
    chart.zoom(null);
    redraw();
  });
  const field = html("label", { class: "minimum" }, "F*", input);
  input.addEventListener("input", () => {
    state.minimum = input.value.trim();
    input.setAttribute("aria-invalid", String(state.minimum !== "" && !isNumber(state.minimum)));
    redraw();
  });
  const chart = lineChart(box, {
    controls: [valueBox, field, axisBox], file: "progress", logY: true, label: "Losses or metrics of the runs.",
    marksTitle: MARK_WORDS, idle: "latest values",
    height: (plot) => Math.round(Math.min(360, Math.max(240, plot.clientWidth * 0.42))),
  });
  const redraw = () => {
    offerMetrics(valueBox.querySelector("select"), state);
    field.hidden = state.value !== "error";
    const series = [...store.shown.values()].map((run) => progressSeries(run, state));
    const marks = marksOf(store.shown.get(store.focus), state.axis);
    const yTitle = state.value === "error" ? "error: loss − F*" : state.value;
    chart.update({ series, marks, xTitle: AXES[state.axis], yTitle, hint: () => errorHint(state) });
  };
  return { redraw };
}

function offerMetrics(select, state) {
  const names = new Set([...store.shown.values()].flatMap((run) => Object.keys(run.points.metrics)));
  for (const option of [...select.options].slice(2)) if (!names.delete(option.value)) option.remove();
  select.append(...[...names].map((name) => html("option", { value: name }, name)));
  if (![...select.options].some(({ value }) => value === state.value)) state.value = select.value = "loss";
}

const isNumber = (text) => text !== "" && Number.isFinite(Number(text));
const minimumOf = (run, { minimum }) => (isNumber(minimum) ? Number(minimum) : run.minimum ?? 0);

function progressSeries(run, state) {
  const { points, latest } = run;
  const isLoss = ["loss", "error"].includes(state.value);
  const column = (data) => (isLoss ? data.loss : data.metrics[state.value] ?? data.loss.map(() => null));
  const x = [...points[state.axis]];
  let y = [...column(points)];
  if (latest.step.length && latest.step[0] !== points.step.at(-1)) {
    x.push(latest[state.axis][0]);
    y.push(column(latest)[0]);
  }
  if (state.value === "error") y = y.map((loss) => (loss === null ? null : loss - minimumOf(run, state)));
  return { ...seriesBase(run), x, y, off: run.diverged };
}

function errorHint(state) {
  if (state.value !== "error" || isNumber(state.minimum)) return "";
  if (state.minimum !== "") return `F* must be a number, got ${state.minimum}: the error is the loss minus it.`;
  const known = [...store.shown.values()].some((run) => run.minimum !== null);
  return known ? "F* is that of the configuration." : "F* is not known, so 0 is subtracted: enter it above.";
}

/* Steps and gradients per second, and delays. */
function speedChart(box) {
  const state = { value: "steps" };
  const options = Object.entries(SPEEDS).map(([value, [words]]) => [value, words]);
  const select = selectBox("show", options, "steps", (value) => {
    state.value = value;
    redraw();
  });
  const chart = lineChart(box, {
    controls: [select], file: "speed", tools: ["logY", "smooth"], xTitle: "time (s)", label: "Speed of the runs.",
    marksTitle: MARK_WORDS, height: () => 260, idle: "latest values",
  });
  const redraw = () => {
    const series = [...store.shown.values()].map((run) => speedSeries(run, state.value));
    chart.update({ series, marks: marksOf(store.shown.get(store.focus)), yTitle: SPEEDS[state.value][0] });
  };
  return { redraw };
}

function speedSeries(run, value) {
  const grid = endedColumns(run) ? widened(run.grid, endedColumns(run)) : { steps: [] };
  const numbers = grid.steps.map((_, column) => column);
  const x = numbers.map((column) => (column + 0.5) * grid.width);
  return { ...seriesBase(run), x, y: numbers.map((column) => SPEEDS[value][1](grid, column)) };
}

/* The columns merged until they have enough arrivals on average and are long enough, since shorter ones show noise. */
function widened(grid, columns) {
  const arrivals = grid.arrivals.slice(0, columns).reduce((sum, each) => sum + each, 0);
  const byArrivals = Math.min(LEAST_ARRIVALS * columns / Math.max(1, arrivals), columns / FEWEST_COLUMNS);
  const bySeconds = Math.min(LEAST_SECONDS / grid.width, columns / USUAL_COLUMNS);
  const merged = Math.max(1, Math.floor(Math.max(byArrivals, bySeconds)));
  const starts = Array.from({ length: Math.floor(columns / merged) }, (_, place) => place * merged);
  const parts = (name) => starts.map((start) => grid[name].slice(start, start + merged));
  const total = (numbers) => numbers.reduce((sum, each) => sum + each, 0);
  const counts = parts("arrivals").map(total);
  const weighted = grid.delay.map((delay, column) => (delay ?? 0) * grid.arrivals[column]);
  const delays = starts.map((start) => total(weighted.slice(start, start + merged)));
  return {
    width: grid.width * merged, arrivals: counts, steps: parts("steps").map((steps) => steps.at(-1)),
    delay: delays.map((sum, place) => (counts[place] ? sum / counts[place] : null)),
    longest: parts("longest").map((longest) => Math.max(...longest)),
  };
}
