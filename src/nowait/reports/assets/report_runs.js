// The charts of runs in a report.
// Exposes: drawRuns.

function drawRuns() {
  chosen.place = firstChosen();
  drawErrors();
  drawTimeline();
  drawHeat();
  drawDelays();
  drawShares();
}

// Loss curves

function errorSeries(axis) {
  return methods.map((method, place) => {
    const curve = method.curves[axis];
    const { x, middle: y, low, high } = curve;
    return { name: method.name, place, x, y, low, high, note: method.note, off: method.off, ended: "ended" };
  });
}

const EVENT_WORDS = { join: "joins", death: "deaths", resume: "resumes", decision: "decisions of the method" };
const EVENT_ENDS = { join: "joined", death: "was lost" };
/* `of` is a worker; of a decision, the sentence. */
function eventText(kind, of) {
  if (kind === "decision") return of;
  return kind === "resume" ? "resumed" : `worker ${of} ${EVENT_ENDS[kind]}`;
}

/* Events of runs are on the axis of time only, and only where one run is meant. */
const eventMarks = (method) => method.events.map(([x, kind, of]) => ({ x, kind, text: eventText(kind, of) }));

function drawErrors() {
  const marksOn = (axis) => (axis === "time" && methods.length === 1 ? eventMarks(methods[0]) : []);
  const drawn = lineChart(byId("errors-chart"), {
    series: errorSeries("time"),
    marks: marksOn("time"),
    marksTitle: EVENT_WORDS,
    logY: true,
    xTitle: AXES.time,
    yTitle: ERROR,
    xLabel: xWords("time"),
    file: "loss",
    label: `${ERROR} of ${methods.length} runs or groups of runs.`,
    height: mainHeight,
    hint: errorHint,
    controls: [choice("x axis", AXIS_NAMES, "time", (axis) => {
      drawn.zoom(null);
      drawn.update({ series: errorSeries(axis), marks: marksOn(axis), xTitle: AXES[axis], xLabel: xWords(axis) });
    })],
  });
}

function errorHint(series, state) {
  const notes = [];
  if (series.some(({ low }) => low))
    notes.push("Lines are medians over runs; bands range from the lowest to the highest run.");
  if (series.some(({ off }) => off))
    notes.push("Runs that diverged or ended far above the initial loss leave the chart at the top.");
  if (state.logY && series.some(({ y }) => y.some((value) => value !== null && value <= 0)))
    notes.push("Values of 0 or less cannot be drawn on a logarithmic scale.");
  return notes.join(" ");
}

// Timeline and delays over time

const choiceHint = (known, count, verb) =>
  count < known ? `${count} of ${whole(known)} workers are ${verb}: the slowest, and some of the others.` : "";

/* The charts of workers show one run: a choice in one of them changes all. At first it is the one with the longest
   delay. */
const chosen = { place: 0, updates: [], boxes: [] };

function firstChosen() {
  const longest = methods.map(({ delays }) => delays.longest);
  return longest.indexOf(Math.max(...longest));
}

function methodChoice(update) {
  const box = selectBox("run", methodOptions(), String(chosen.place), (place) => {
    chosen.place = Number(place);
    for (const other of chosen.boxes) other.querySelector("select").value = place;
    for (const each of chosen.updates) each(chosen.place);
  });
  chosen.updates.push(update);
  chosen.boxes.push(box);
  return box;
}

function timelineOptions(place) {
  const method = methods[place];
  const { lanes, start, end, exact, detail, bins, jobs, num_workers: known } = method.timeline;
  const kind = jobs.kind.map((code) => report.outcomes[code]);
  const notes = [choiceHint(known, lanes.length, "shown")];
  if (method.runs > 1) notes.push(`The first of ${method.runs} runs.`);
  if (bins)
    notes.push("Where there are too many jobs to draw, the height of a bar is the share of the time spent computing.");
  notes.push("Jobs that were cancelled or lost during the run have no bar.");
  return {
    lanes, start, end, exact, detail, bins,
    jobs: { ...jobs, kind },
    marks: eventMarks(method),
    label: `Timeline of ${method.name}.`,
    hint: notes.filter(Boolean).join(" "),
    describe: (index) => jobRows(jobs, kind, index),
  };
}

function drawTimeline() {
  const first = html("button", { type: "button" }, "First jobs");
  const controls = [methodChoice((place) => {
    drawn.zoom(null);
    drawn.update(timelineOptions(place));
    showFirst();
  }), first];
  const showFirst = () => (first.hidden = !methods[chosen.place].timeline.detail);
  const drawn = timeline(byId("timeline-chart"), { ...timelineOptions(chosen.place), controls });
  first.addEventListener("click", () => drawn.zoom(methods[chosen.place].timeline.detail));
  showFirst();
}

function jobRows(jobs, kind, index) {
  const started = `${shown(jobs.started[index], 4)} s`;
  if (kind[index] === "open") return [["no gradient after", started], ["the run ended at", `${shown(jobs.time[index], 4)} s`]];
  return [
    ["job", whole(jobs.job[index])],
    ["outcome", kind[index]],
    ["version", whole(jobs.version[index])],
    ["delay", whole(jobs.delay[index])],
    ["step", jobs.step[index] ? whole(jobs.step[index]) : "none"],
    ["started", started],
    ["arrived", `${shown(jobs.time[index], 4)} s`],
    ["computed", `${shown(jobs.compute_seconds[index], 4)} s`],
  ];
}

function heatOptions(place) {
  const { lanes, start, end, delays, num_workers: known } = methods[place].timeline;
  return {
    rows: lanes.map(({ name }) => String(name)), values: delays, start, end,
    label: `Delays of the workers of ${methods[place].name} over time.`,
    hint: choiceHint(known, lanes.length, "shown"),
  };
}

function drawHeat() {
  const controls = [methodChoice((place) => {
    drawn.zoom(null);
    drawn.update(heatOptions(place));
  })];
  const drawn = heatmap(byId("heat-chart"), {
    ...heatOptions(chosen.place), controls, log: true, unit: "steps", xTitle: "time (s)", yTitle: "worker",
    file: "delays-over-time", value: whole,
  });
}

// Histogram of delays

function delayCounts(delays, worker) {
  if (worker === "all") return { counts: delays.counts, longest: delays.longest };
  const row = delays.workers.indexOf(Number(worker));
  if (row < 0) return { counts: delays.counts.map(() => 0) };
  return { counts: delays.by_worker[row], longest: delays.longest_by_worker[row] };
}

function delayOptions(worker) {
  const workers = Math.max(...methods.map(({ num_workers: count }) => count));
  return {
    series: methods.map((method, place) => ({ name: method.name, place, ...delayCounts(method.delays, worker) })),
    marks: [{ x: workers, text: `M = ${whole(workers)}` }],
  };
}

function workerOptions() {
  const workers = new Set(methods.flatMap((method) => method.delays.workers));
  return [["all", "all"], ...[...workers].sort((a, b) => a - b).map((worker) => [String(worker), String(worker)])];
}

function drawDelays() {
  const [most, listed] = [Math.max(...methods.map((method) => method.num_workers)), workerOptions().length - 1];
  const drawn = histogram(byId("delays-chart"), {
    ...delayOptions("all"),
    edges: report.edges,
    xTitle: "delay (steps)",
    yTitle: "gradients",
    file: "delays",
    label: "Histogram of delays.",
    binName: (from, to) => (from === to ? `delay ${whole(from)}` : `delays ${whole(from)} to ${whole(to)}`),
    hint: `Triangles mark the longest delay of each run. ${choiceHint(most, listed, "listed individually")}`,
    controls: [selectBox("worker", workerOptions(), "all", (worker) => drawn.update(delayOptions(worker)))],
  });
}

// Shares

function shareOptions(place) {
  const { workers, share, gradients, seconds, num_workers: count } = methods[place].shares;
  const fair = count ? 100 / count : 0;
  return {
    names: workers.map(String),
    values: share.map((part) => 100 * part),
    place,
    line: { value: fair, text: `equal share 1/M = ${shown(fair)} %` },
    label: `Shares of the workers, ${methods[place].name}; an equal share is ${shown(fair)} percent.`,
    hint: choiceHint(count, workers.length, "shown"),
    describe: (row) => [
      ["share", `${shown(100 * share[row])} %`],
      ["relative to 1/M", `${shown(share[row] * count)} ×`],
      ["gradients", whole(gradients[row])],
      ["seconds per gradient", seconds[row] === null ? "none arrived" : shown(seconds[row])],
    ],
  };
}

function drawShares() {
  const controls = [methodChoice((place) => drawn.update(shareOptions(place)))];
  const drawn = barChart(byId("shares-chart"), {
    ...shareOptions(chosen.place), controls, xTitle: "worker, slowest first", yTitle: "share of the gradients (%)",
    file: "shares",
  });
}
