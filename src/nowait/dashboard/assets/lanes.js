// The timeline and the delays of the run in focus, lane by lane; the jobs of a zoomed interval come from the server.
// Exposes: lanesOf.

const LANE_KINDS = {
  applied: "used in a step", dropped: "not used: dropped, late or rejected", flight: "has not arrived",
};
const FEW_ARRIVALS = 3000;
const FETCH_AFTER_MS = 120;
const VIEWS = [["whole", "whole run"], ["60", "last 60 s"], ["10", "last 10 s"]];

function lanesOf(timelineBox, delaysBox) {
  const state = { view: "whole", range: null, detail: null, run: null, timer: null, asked: "" };
  const views = choice("Part of the run", VIEWS, "whole", (view) => setView(view));
  const show = (range) => {
    state.range = range;
    clearTimeout(state.timer);
    state.timer = setTimeout(fetchDetail, FETCH_AFTER_MS);
    redraw();
  };
  const lanes = timeline(timelineBox, {
    controls: [views], file: "timeline", label: "What each worker did, from the start of the run to now.",
    kinds: LANE_KINDS, describe: (job) => describeJob(state, job), onzoom: (range) => userZoom(range),
  });
  const delays = heatmap(delaysBox, {
    file: "delays", log: true, xTitle: "time (s)", yTitle: "worker", unit: "steps",
    label: "Mean delay of the gradients of each worker over time.",
    onzoom: (range) => lanes.zoom(range),
  });
  const pressView = (view) => [...views.children].forEach((each) => press(each, each.dataset.value === view));
  const userZoom = (range) => {
    if (state.quiet) return;
    state.view = range ? "own" : "whole";
    pressView(state.view);
    show(range);
  };
  const setView = (view) => {
    state.view = view;
    state.detail = null;
    zoomQuietly(view === "whole" ? null : lastSeconds(state.run, Number(view)));
    show(view === "whole" ? null : lastSeconds(state.run, Number(view)));
  };
  const zoomQuietly = (range) => {
    state.quiet = true;
    lanes.zoom(range);
    state.quiet = false;
  };
  const fetchDetail = async () => {
    const { run } = state;
    const range = wantedRange(state);
    const asked = run && range ? `${run.id} ${run.arrivals} ${range}` : "";
    if (!asked || asked === state.asked) return;
    state.asked = asked;
    try {
      const found = await request(`api/range?run=${run.id}&from=${range[0]}&to=${range[1]}`);
      if (state.run && state.run.id === run.id) takeDetail(found);
    } catch {
      state.asked = "";  // the poll says what is wrong
    }
  };
  const takeDetail = (found) => {
    state.detail = found;
    redraw();
    if (state.view !== "own" && state.view !== "whole") zoomQuietly([found.from, found.to]);
  };
  const redraw = () => {
    const { run } = state;
    if (!run || !run.grid) return;
    const order = laneOrder(run);
    lanes.update(timelineOptions(state, run, order));
    delays.update(delayOptions(state, run, order));
  };
  const update = () => {
    const run = store.shown.get(store.focus) ?? null;
    if (run && state.run && run.id !== state.run.id) {
      Object.assign(state, { view: "whole", range: null, detail: null, asked: "" });
      pressView("whole");
      zoomQuietly(null);
    }
    state.run = run;
    redraw();
    if (state.view !== "own") fetchDetail();
  };
  return { redraw: update };
}

/* Up to when the trace is known: evaluations of a run that goes on may be ahead of it. */
const knownEnd = ({ state, present, time }) => (state === "running" ? present : time);

const lastSeconds = (run, seconds) => (run ? [Math.max(0, knownEnd(run) - seconds), knownEnd(run)] : null);

/* The interval whose jobs are needed; null if the columns of the whole run are all that is shown. */
function wantedRange({ view, range, run }) {
  if (!run || !run.grid || !(knownEnd(run) > 0)) return null;
  if (view === "own") return range;
  if (view !== "whole") return lastSeconds(run, Number(view));
  return run.arrivals <= FEW_ARRIVALS && run.kept === "full" ? [0, run.time] : null;
}

/* The straggler first, the others by number. */
function laneOrder(run) {
  const first = run.straggler ? run.straggler.worker : -1;
  const lanes = run.lanes.map((worker, lane) => ({ worker, lane, pinned: worker === first }));
  return lanes.sort((a, b) => b.pinned - a.pinned || a.worker - b.worker);
}

const isCurrent = (detail, run) => detail && detail.lanes.join() === run.lanes.join();

function timelineOptions(state, run, order) {
  const { detail } = state;
  const known = isCurrent(detail, run) ? detail : null;
  const end = run.grid.columns * run.grid.width;
  const jobs = jobColumns(run, order, known && known.jobs);
  state.jobs = jobs;
  const note = ({ pinned }) => (pinned ? timesShort(run.straggler.times) : "");
  return {
    lanes: order.map((each) => ({ name: each.worker, pinned: each.pinned, note: note(each) })),
    start: 0, end, jobs, exact: [], detail: known?.jobs ? [known.from, known.to >= run.time ? end : known.to] : null,
    bins: { columns: run.grid.columns, parts: binParts(run, order, run.grid, 0, run.grid.width) },
    fine: known && !known.jobs && known.used?.length ? fineBins(run, order, known) : null,
    marks: marksOf(run), hint: `${lanesHint(run)}Drag to zoom; the strip under the lanes shows the whole run.`,
  };
}

function fineBins(run, order, { start, width, ...tables }) {
  const columns = tables.used[0].length;
  return { from: start, to: start + width * columns, columns, parts: binParts(run, order, tables, start, width) };
}

const timesShort = (times) => (times === null ? "slowest" : `${shown(times, 2)} ×`);

function lanesHint(run) {
  const { lanes, workers, kept } = run;
  const some = `${lanes.length} of ${whole(workers.total)} workers: the slowest, and some of the others. `;
  const missing = `The trace of this run is "${kept}": jobs that were not kept are missing here. `;
  return `${lanes.length < workers.total ? some : ""}${kept === "full" ? "" : missing}`;
}

/* Jobs that have not arrived: from the latest delivery of a worker to now, or to the end of the run. */
function flights(run) {
  const busy = run.workers.rows.filter(({ job }) => job > 0);
  const end = knownEnd(run);
  return new Map(busy.map(({ worker, job }) => [worker, [Math.max(0, run.present - job), end]]));
}

function jobColumns(run, order, jobs) {
  const lane = new Map(order.map((each, place) => [each.lane, place]));
  const list = (jobs ? jobs.lane : []).map((each, index) => ({
    lane: lane.get(each), started: jobs.started[index], time: jobs.time[index], delay: jobs.delay[index],
    kind: jobs.used[index] ? "applied" : "dropped", step: jobs.step[index], computing: jobs.computing[index],
  }));
  const flying = flights(run);
  order.forEach(({ worker }, place) => {
    const [started, time] = flying.get(worker) ?? [0, 0];
    if (time > started) list.push({ lane: place, started, time, kind: "flight" });
  });
  list.sort((a, b) => a.lane - b.lane || a.time - b.time);
  const names = ["lane", "started", "time", "kind", "delay", "step", "computing"];
  return Object.fromEntries(names.map((name) => [name, list.map((job) => job[name])]));
}

function describeJob({ jobs }, job) {
  const { kind, step, delay, computing } = Object.fromEntries(Object.keys(jobs).map((name) => [name, jobs[name][job]]));
  const taken = duration(jobs.time[job] - jobs.started[job]);
  const started = ["started", `${shown(jobs.started[job], 5)} s`];
  if (kind === "flight") return [started, ["has taken", taken]];
  const used = ["used in", step ? `step ${whole(step)}` : "a later step"];
  const use = kind === "applied" ? used : ["its gradient was", "not used"];
  return [started, ["took", taken], ["computing", duration(computing)], ["delay", whole(delay)], use];
}

function binParts(run, order, tables, start, width) {
  const flying = flights(run);
  const parts = {
    applied: order.map(({ lane }) => tables.used[lane] ?? []),
    dropped: order.map(({ lane }) => tables.unused[lane] ?? []),
    flight: order.map(({ lane, worker }) => flightBins(flying.get(worker), tables, lane, start, width)),
  };
  const isPresent = ([, rows]) => rows.some((row) => row.some((part) => part > 0));
  return Object.fromEntries(Object.entries(parts).filter(isPresent));
}

function flightBins(flying, { used, unused }, lane, start, width) {
  return (used[lane] ?? []).map((part, column) => {
    if (!flying) return 0;
    const [from, to] = [start + column * width, start + (column + 1) * width];
    const covered = (Math.min(to, flying[1]) - Math.max(from, flying[0])) / width;
    return Math.max(0, Math.min(100 - part - unused[lane][column], 100 * covered));
  });
}

function delayOptions(state, run, order) {
  const known = isCurrent(state.detail, run) && state.view !== "whole" && state.detail.delays ? state.detail : null;
  const table = known ? known.delays : run.grid.delays;
  const [start, width] = known ? [known.start, known.width] : [0, run.grid.width];
  const values = order.map(({ lane }) => table[lane] ?? []);
  const end = start + width * Math.max(1, ...values.map((row) => row.length));
  const hint = `${lanesHint(run)}The mean delay of the gradients that a worker computed; 1 means that it is fresh.`;
  return { rows: order.map(({ worker }) => worker), values, start, end, hint };
}
