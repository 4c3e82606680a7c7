// What the page knows of the runs, and the requests that bring it up to date.
// Exposes: store, merge, poll, cursor, stepAt, timeOf.
//
// store.runs    every run that was found: {id, name, folder, state, age}
// store.shown   Map of id -> data of the runs that are shown, in the order of the list; `place` selects the colour
// store.focus   the id of the run whose workers are shown
// store.chosen  ids that the user wants to see; null until the user chooses

const SECONDS_BETWEEN_POLLS = 1.0;
const SECONDS_BEFORE_RETRY = 2.0;
const POINT_COLUMNS = ["step", "gradients", "time", "loss"];
const GRID_COLUMNS = ["steps", "arrivals", "delay", "longest"];
const GRID_TABLES = ["used", "unused", "delays"];

const store = {
  runs: [], watched: [], shown: new Map(), focus: null, chosen: null, places: new Map(), paused: false, timer: null,
};

/* What the page has of a run, as the server reads it. */
const cursor = (run) => `${run.id}.${run.epoch}.${run.points.step.length}.${run.grid ? run.grid.version : -1}`;

// Merging

/* Adds what is new to what is known; all of it is new if the epoch is another one. */
function merge(known, given) {
  const same = known && known.epoch === given.epoch;
  const run = { ...given };
  run.points = mergedPoints(same ? known.points : null, given.points);
  run.grid = mergedGrid(same ? known.grid : null, given.grid);
  return run;
}

/* A column of which the values from number `first` on are new. */
const extended = (known, first, added) => [...(known ?? []).slice(0, first), ...added];

function mergedPoints(known, given) {
  const points = { metrics: {} };
  for (const name of POINT_COLUMNS) points[name] = extended(known?.[name], given.first, given[name]);
  const added = given.step.length;
  for (const name of new Set([...Object.keys(known?.metrics ?? {}), ...Object.keys(given.metrics)])) {
    const before = (known?.metrics[name] ?? []).slice(0, given.first);
    while (before.length < points.step.length - added) before.push(null);
    points.metrics[name] = [...before, ...(given.metrics[name] ?? Array(added).fill(null))];
  }
  return points;
}

function mergedGrid(known, given) {
  if (!given) return null;
  const grid = { version: given.version, columns: given.columns, width: given.width };
  for (const name of GRID_COLUMNS) grid[name] = extended(known?.[name], given.first, given[name]);
  for (const name of GRID_TABLES)
    grid[name] = given[name].map((row, lane) => extended(known?.[name][lane], given.first, row));
  return grid;
}

function accept(update) {
  store.runs = update.runs;
  store.watched = update.watched;
  store.mostShown = update.most_shown;
  const shown = new Map();
  for (const { id, name, age, folder } of update.runs) {
    if (!(id in update.shown) || (store.chosen && !store.chosen.has(id))) continue;
    if (!store.places.has(id)) store.places.set(id, store.places.size);
    const run = merge(store.shown.get(id), update.shown[id]);
    shown.set(id, Object.assign(run, { id, name, age, folder, place: store.places.get(id) }));
  }
  store.shown = shown;
  if (!shown.has(store.focus)) store.focus = firstFocus([...shown.values()]);
}

/* The run to look at first: a running one with a straggler, else a running one, else the first. */
function firstFocus(runs) {
  const rank = (run) => (run.state === "running" ? 0 : 2) + (run.straggler ? 0 : 1);
  return runs.length ? runs.reduce((best, run) => (rank(run) < rank(best) ? run : best)).id : null;
}

// Steps and times: the columns of the grid say which steps were made until when

function stepAt(run, time) {
  if (!run.grid) return null;
  const column = Math.min(run.grid.columns - 1, Math.floor(time / run.grid.width));
  return column < 0 ? 0 : run.grid.steps[column];
}

function timeOf(run, step) {
  if (!run.grid) return null;
  const column = below(run.grid.steps, step);
  return column < run.grid.columns ? Math.min(run.time, (column + 0.5) * run.grid.width) : run.time;
}

// Requests

class RefusedError extends Error {}

async function request(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (answer.status === 403 || answer.status === 421) throw new RefusedError();
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

function updatePath() {
  if (!store.chosen && !store.shown.size) return "api/update";
  const ids = store.chosen ?? [...store.shown.keys(), ...newRuns()];
  const known = [...ids].map((id) => (store.shown.has(id) ? cursor(store.shown.get(id)) : id));
  return `api/update?shown=${encodeURIComponent(known.join(","))}`;
}

/* Until the user has chosen, runs that begin while the page is open are shown as well. */
function newRuns() {
  const room = Math.max(0, (store.mostShown ?? 0) - store.shown.size);
  const begun = store.runs.filter(({ id, state }) => state === "running" && !store.shown.has(id));
  return begun.slice(0, room).map(({ id }) => id);
}

/* Asks for what is new, then calls show(); again after a second. Stops while nobody looks at the page. */
async function poll(show, tell) {
  clearTimeout(store.timer);
  if (document.hidden || store.paused || store.busy) return;
  store.busy = true;
  let seconds = SECONDS_BETWEEN_POLLS;
  try {
    const update = await request(updatePath());
    accept(update);
    tell("live");
    show();
    if (update.more) seconds = 0;
  } catch (error) {
    seconds = SECONDS_BEFORE_RETRY;
    tell(error instanceof RefusedError ? "refused" : error instanceof TypeError ? "gone" : "failed", error);
  } finally {
    store.busy = false;
  }
  if (!store.paused) store.timer = setTimeout(() => poll(show, tell), 1000 * seconds);
}
