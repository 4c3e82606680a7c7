// The timeline of workers: one lane per worker, the whole run, with zoom and a brush below.
// Exposes: timeline, OUTCOME_WORDS.
//
// timeline(box, options) -> {update(changes), zoom(range)}.
//   lanes     [{name, note, pinned}]: pinned lanes (the stragglers) come first and are marked
//   start, end  the time of the whole run
//   jobs      columns {lane, started, time, kind}, ordered by lane, then time, and any more that `describe(index)` reads
//             into rows [[name, value], ...] for the readout
//   exact     per lane: true if `jobs` contains all its jobs; the others are drawn from `bins`,
//   detail    except inside this range [from, to], in which `jobs` has the jobs of all lanes; null: there is none
//   bins      {columns, parts: {kind: [percent of the time of each column, per lane]}}
//   fine      like bins, with more columns for a part {from, to, columns, parts} of the run; null: there is none
//   kinds     {kind: words}; marks: as for lineChart; file, label, controls, hint, xTitle
//   onzoom(range)  called after a zoom, so that a live page can fetch the jobs of this range

const OUTCOME_WORDS = {
  applied: "applied: the step used this gradient alone",
  held: "held: added to a sum for a later step",
  dropped: "dropped: not used",
  late: "late: arrived after its ticket was cancelled",
  rejected: "rejected: not a finite vector of the right size",
  open: "nothing arrived any more: running at the end, cancelled or lost",
};
const TIMELINE_DEFAULTS = {
  lanes: [], start: 0, end: 1, jobs: { lane: [], started: [], time: [], kind: [] }, exact: [], detail: null, bins: null, fine: null,
  kinds: OUTCOME_WORDS, marks: [], describe: () => [], file: "timeline", label: "", controls: [], hint: "",
  xTitle: "time (s)", onzoom: () => {},
};
const PATTERNED = ["dropped", "late", "rejected"];
const MINI_PIXELS = 46;
const LANE_NAME_PIXELS = 6.6;
let patternSets = 0;

function timeline(box, given) {
  const options = { ...TIMELINE_DEFAULTS, ...given };
  const state = { zoom: null, patterns: (patternSets += 1) };
  const parts = stripParts(box, options);
  const surfaceOf = surface(parts.plot);
  const zoom = (range) => {
    state.zoom = range && clampRange(range, [options.start, options.end]);
    draw();
    options.onzoom(state.zoom);
  };
  const strip = brush(parts.after, { height: MINI_PIXELS, onchange: zoom });
  const draw = () => {
    parts.reset.hidden = !state.zoom;
    parts.hint.textContent = options.hint;
    parts.key.replaceChildren(...kindKey(options, state));
    if (!options.lanes.length || options.end <= options.start) return;
    const left = laneMargin(options.lanes);
    surfaceOf.draw(timelineSpec(options, state, left, zoom, (told) => showReadout(parts.readout, told)));
    const paint = (drawn) => paintMini(drawn, options, state);
    strip.draw({ domain: [options.start, options.end], range: state.zoom, left, paint });
  };
  parts.reset.addEventListener("click", () => zoom(null));
  const [picture, rows] = [() => surfaceOf.picture, () => timelineRows(options)];
  parts.ends.append(...downloadButtons({ file: options.file, picture, rows }));
  onResize(parts.plot, draw);
  draw();
  const update = (changes) => {
    Object.assign(options, changes);
    if (state.zoom) state.zoom = clampRange(state.zoom, [options.start, options.end]);
    draw();
  };
  return { update, zoom };
}

const laneWords = ({ name, note }) => (note ? `${name} · ${note}` : String(name));

function laneMargin(lanes) {
  const longest = Math.max(...lanes.map((lane) => laneWords(lane).length));
  return Math.min(150, Math.max(48, Math.round(longest * LANE_NAME_PIXELS) + 16));
}

function timelineSpec(options, state, left, zoom, readout) {
  const { lanes } = options;
  const size = Math.max(13, Math.min(26, Math.round(420 / lanes.length)));
  const range = state.zoom ?? [options.start, options.end];
  const targets = laneTargets(options, range);
  const scales = {};
  return {
    height: lanes.length * size + 56,
    left,
    label: `${options.label} ${KEYS}`,
    x: (pixels) => (scales.x = linear(range, pixels)),
    y: ([bottom, top]) => (scales.y = rowScale(lanes.map(laneWords), [top, bottom])),
    yTicks: lanes.map((_, row) => row),
    xTitle: options.xTitle,
    paint: (drawn) => {
      scales.area = drawn.area;
      drawn.plot.append(patterns(state), ...targetShapes(drawn, targets, size * 0.74, state));
      drawn.plot.append(...markShapes(drawn, options.marks));
      drawn.over.append(...pinnedLine(drawn, lanes, size));
    },
    stops: targets.length,
    find: (pixel, y) => {
      const place = scales.x.invert(pixel);
      return findTarget(targets, scales.y.row(y), place, scales.x.invert(pixel + 2) - place);
    },
    tell: (stop) => timelineTold(options, targets[stop], scales, size),
    readout,
    zoom,
  };
}

// Targets: what is drawn, ordered by lane and time. {lane, from, to, job, parts: [[kind, part of the height], ...]}

function jobTarget(jobs, lane, job) {
  return { lane, from: jobs.started[job], to: jobs.time[job], job, parts: [[jobs.kind[job], 1]] };
}

const isExact = ({ exact, detail, bins }, lane, range) =>
  !bins || exact[lane] || (detail !== null && range[0] >= detail[0] && range[1] <= detail[1]);

function laneTargets(options, range) {
  const targets = [];
  const { jobs, lanes } = options;
  let next = 0;
  for (let lane = 0; lane < lanes.length; lane += 1) {
    const exact = isExact(options, lane, range);
    const mine = [];
    for (; next < jobs.lane.length && jobs.lane[next] === lane; next += 1) {
      const inside = jobs.started[next] <= range[1] && jobs.time[next] >= range[0];
      const drawn = inside && (exact || jobs.kind[next] === "open");
      if (drawn) mine.push(jobTarget(jobs, lane, next));
    }
    if (!exact) targets.push(...binTargets(options, lane, range));
    targets.push(...mine);
  }
  return targets;
}

function binTargets(options, lane, range) {
  const { from: start, to: end, columns, parts: shares } = binsFor(options, range);
  const width = (end - start) / columns;
  const targets = [];
  for (let column = 0; column < columns; column += 1) {
    const [from, to] = [start + column * width, start + (column + 1) * width];
    if (to < range[0] || from > range[1]) continue;
    const parts = Object.entries(shares).map(([kind, rows]) => [kind, rows[lane][column] / 100]).filter(([, part]) => part > 0);
    if (parts.length) targets.push({ lane, from, to, job: null, parts });
  }
  return targets;
}

/* The finer columns if they contain the whole range. */
function binsFor({ bins, fine, start, end }, range) {
  const slack = 1e-9 * (end - start);
  const isInside = fine && range[0] >= fine.from - slack && range[1] <= fine.to + slack;
  return isInside ? fine : { from: start, to: end, ...bins };
}

/* The last target that contains the place; bars narrower than the slack still can be hit. */
function findTarget(targets, lane, place, slack) {
  for (let index = targets.length - 1; index >= 0; index -= 1) {
    const target = targets[index];
    if (target.lane === lane && place >= target.from - slack && place <= target.to + slack) return index;
  }
  return -1;
}

function timelineTold(options, target, { x, y, area }, size) {
  const [from, to] = [Math.max(area.left, x(target.from)), Math.min(area.right, x(target.to))];
  const shape = { x: from, width: Math.max(1, to - from), y: y(target.lane) - size * 0.37, height: size * 0.74 };
  const worker = `worker ${laneWords(options.lanes[target.lane])}`;
  const draw = [svg("rect", { class: "outline", rx: 1.5, ...shape })];
  if (target.job !== null) return { title: worker, rows: options.describe(target.job), draw };
  const rows = target.parts.map(([kind, part]) => [kind, `${shown(100 * part, 2)} %`]);
  const span = [["from", `${shown(target.from, 4)} s`], ["to", `${shown(target.to, 4)} s`]];
  return { title: worker, rows: [...span, ...rows], draw };
}

// Shapes: one path per kind

function targetShapes({ x, y, area }, targets, height, { patterns: set }) {
  const paths = {};
  for (const { lane, from, to, job, parts } of targets) {
    const [left, right] = [Math.max(area.left - 2, x(from)), Math.min(area.right + 2, x(to))];
    const gap = job !== null && right - left > 4 ? 1 : 0;
    const edge = Math.max(left + 0.8, right - gap);
    let bottom = y(lane) + height / 2;
    for (const [kind, part] of parts) {
      const top = bottom - part * height;
      paths[kind] = (paths[kind] ?? "") + rectanglePath(left, top, edge, bottom);
      bottom = top;
    }
  }
  return Object.entries(paths).map(([kind, d]) => kindShape("path", kind, set, { class: "job", "data-kind": kind, d }));
}

function rectanglePath(left, top, right, bottom) {
  const [x0, y0, x1, y1] = [left, top, right, bottom].map((pixel) => pixel.toFixed(1));
  return `M${x0} ${y0}H${x1}V${y1}H${x0}Z`;
}

function kindShape(tag, kind, set, attributes) {
  const shape = svg(tag, attributes);
  shape.style.fill = PATTERNED.includes(kind) ? `url(#${kind}-${set})` : `var(--${kind})`;
  return shape;
}

function paintMini(drawn, options, state) {
  const range = [options.start, options.end];
  const y = rowScale(options.lanes, [drawn.area.top + 2, drawn.area.bottom - 2]);
  drawn.plot.append(...targetShapes({ ...drawn, y }, laneTargets(options, range), y.size * 0.85, state));
}

function pinnedLine({ area, y }, lanes, size) {
  const count = lanes.filter((lane) => lane.pinned).length;
  if (!count || count === lanes.length) return [];
  const at = y(count - 1) + size / 2;
  return [svg("line", { class: "pinned", x1: 4, x2: area.right, y1: at, y2: at })];
}

function patterns({ patterns: set }) {
  const pattern = (kind, ...shapes) =>
    svg("pattern", { id: `${kind}-${set}`, class: `fill-${kind}`, width: 7, height: 7, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 7, height: 7 }), ...shapes);
  return svg("defs", {},
    pattern("dropped", svg("path", { d: "M-1 8L8 -1M-1 1L1 -1M6 8L8 6" })),
    pattern("late", svg("circle", { cx: 3.5, cy: 3.5, r: 1.4 })),
    pattern("rejected", svg("path", { d: "M0 0L7 7M7 0L0 7" })));
}

function kindKey(options, state) {
  const present = new Set([...options.jobs.kind, ...Object.keys(options.bins?.parts ?? {})]);
  return Object.entries(options.kinds).filter(([kind]) => present.has(kind)).map(([kind, words]) => {
    const sample = kindShape("rect", kind, state.patterns, { width: 22, height: 12, rx: 2 });
    return html("span", {}, svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, sample), words);
  });
}

function timelineRows({ lanes, jobs, bins, start, end, exact }) {
  const rows = [["worker", "from", "to", "outcome", "percent of the time"]];
  jobs.lane.forEach((lane, index) =>
    rows.push([lanes[lane].name, jobs.started[index], jobs.time[index], jobs.kind[index], 100]));
  if (!bins) return rows;
  const width = (end - start) / bins.columns;
  for (const [kind, table] of Object.entries(bins.parts))
    table.forEach((row, lane) => !exact[lane] && row.forEach((part, column) =>
      part && rows.push([lanes[lane].name, start + column * width, start + (column + 1) * width, kind, part])));
  return rows;
}
