// The charts of sweeps in a report: final loss against stepsize, and the loss curve of each stepsize.
// Exposes: drawSweeps.

function drawSweeps() {
  drawStepsizes();
  drawStepsizeCurves();
}

/* A stepsize that diverged, or ended above the initial loss, is a cross at the top: it does not set the axis. */
const isBad = (sweep, at) => sweep.diverged[at] > 0 || sweep.middle[at] === null || sweep.middle[at] > sweep.initial;

function sweepSeries(sweep, place) {
  const bad = sweep.stepsize.map((_, at) => isBad(sweep, at));
  const steady = (values) => values.map((value, at) => (bad[at] ? null : value));
  return {
    name: sweep.name, place, x: sweep.stepsize, y: steady(sweep.middle), points: true,
    ...(sweep.seeds > 1 ? { low: steady(sweep.low), high: steady(sweep.high) } : {}),
    tops: sweep.stepsize.map((x, at) => ({ x, at })).filter(({ at }) => bad[at])
      .map(({ x, at }) => ({ x, text: topText(sweep, at) })),
    last: sweep.best === null ? "every stepsize diverged" : `best ${shown(sweep.best)}`,
  };
}

function topText(sweep, at) {
  if (!sweep.diverged[at]) return "above the initial loss";
  return sweep.diverged[at] === sweep.seeds ? "diverged" : `${sweep.diverged[at]} of ${sweep.seeds} diverged`;
}

function bestMarks() {
  const usable = report.sweeps.filter(({ best }) => best !== null);
  return usable.map(({ best, name }) => ({ x: best, kind: "best", text: `best of ${name}` }));
}

const SWEEP_HINT =
  "Crosses at the top are stepsizes that diverged or ended above the initial loss. Points are medians over the seeds.";

function drawStepsizes() {
  lineChart(byId("sweeps-chart"), {
    series: report.sweeps.map(sweepSeries),
    marks: bestMarks(),
    marksTitle: { best: "best stepsize" },
    logX: true,
    logY: true,
    tools: ["logX", "logY"],
    xTitle: "stepsize",
    yTitle: `final ${ERROR}`,
    xLabel: (x) => `stepsize ${shown(x)}`,
    idle: "best stepsize",
    file: "sweep",
    label: "Final loss against stepsize.",
    height: methods.length ? chartHeight : mainHeight,
    hint: () => SWEEP_HINT,
  });
}

function curveSeries(sweep, axis) {
  return sweep.curves.map((curve, place) => ({
    name: `stepsize ${shown(sweep.stepsize[place])}`, place, x: curve[axis], y: curve.y, off: isBad(sweep, place),
    note: isBad(sweep, place) ? topText(sweep, place) : sweep.stepsize[place] === sweep.best ? "best" : "",
    good: sweep.stepsize[place] === sweep.best,
  }));
}

function drawStepsizeCurves() {
  const state = { sweep: 0, axis: "step" };
  const show = () => {
    drawn.zoom(null);
    const series = curveSeries(report.sweeps[state.sweep], state.axis);
    drawn.update({ series, xTitle: AXES[state.axis], xLabel: xWords(state.axis) });
  };
  const controls = [choice("x axis", AXIS_NAMES, state.axis, (axis) => {
    state.axis = axis;
    show();
  })];
  if (report.sweeps.length > 1)
    controls.unshift(selectBox("sweep", report.sweeps.map(({ name }, place) => [String(place), name]), "0", (place) => {
      state.sweep = Number(place);
      show();
    }));
  const drawn = lineChart(byId("stepsizes-chart"), {
    series: curveSeries(report.sweeps[0], state.axis),
    logY: true,
    xTitle: AXES[state.axis],
    yTitle: ERROR,
    xLabel: xWords(state.axis),
    file: "stepsizes",
    label: "Loss curves of the stepsizes, medians over the seeds.",
    controls,
    hint: () => (report.sweeps[state.sweep].seeds > 1 ? "Lines are medians over the seeds." : ""),
  });
}
