// The table of workers: who is slow, slowest first.
// Exposes: workersTable.

const FIRST_ROWS = 10;
const STATE_WORDS = { computing: "computing", waiting: "waiting for a step", starting: "nothing delivered yet" };
const COLUMNS = ["worker", "now", "s/gradient", "share", "delay", "time goes to"];

function workersTable(box, verdict) {
  const state = { all: false };
  const body = html("tbody");
  const head = html("thead", {}, html("tr", {}, ...COLUMNS.map((name) => html("th", { scope: "col" }, name))));
  const more = toggleButton("", false, (pressed) => {
    state.all = pressed;
    redraw();
  }, { class: "more" });
  const key = html("div", { class: "key phases" });
  const table = html("table", { class: "workers cards" }, head, body);
  box.replaceChildren(html("div", { class: "scroll" }, table), key, more);
  const redraw = () => {
    const run = store.shown.get(store.focus);
    if (!run) return;
    verdict.replaceChildren(...verdictOf(run));
    verdict.dataset.slow = String(Boolean(run.straggler));
    const rows = state.all ? run.workers.rows : run.workers.rows.slice(0, FIRST_ROWS);
    body.replaceChildren(...rows.map((row) => workerRow(run, row)));
    head.rows[0].cells[1].textContent = run.state === "running" ? "now" : "last gradient";
    key.replaceChildren(...phaseKey(run.workers.phases, run.workers.rows));
    more.hidden = run.workers.total <= FIRST_ROWS;
    const all = `Show ${whole(run.workers.rows.length)} of ${whole(run.workers.total)} workers`;
    more.textContent = state.all ? `Show the ${FIRST_ROWS} slowest` : all;
  };
  return { redraw };
}

function verdictOf(run) {
  if (!run.workers.total) return [`${run.name} has no workers yet.`];
  const none = `no worker ${run.state === "running" ? "is" : "was"} much slower than the others`;
  if (!run.straggler) return [`${run.name}: ${none}.`];
  const { worker, times, pace, others } = run.straggler;
  const row = run.workers.rows.find((each) => each.worker === worker);
  const where = row && several(run) ? ` on ${row.node}` : "";
  const [is, take] = run.state === "running" ? ["is", "take"] : ["was", "took"];
  const both = `${duration(pace)} per gradient, the others ${take} ${duration(others)}`;
  const words = row?.state === "starting" ? `it has delivered nothing in ${duration(pace)}` : both;
  return [html("strong", {}, `Worker ${worker}${where} ${is} ${timesWords(times)} than the others`), `: ${words}.`];
}

function workerRow(run, row) {
  const slow = run.straggler && run.straggler.worker === row.worker;
  const cell = (label, ...children) => html("td", { "data-label": label }, ...children);
  const badge = slow ? [html("span", { class: "badge" }, "slowest")] : [];
  const node = several(run) ? [html("small", { class: "muted" }, row.node)] : [];
  return html("tr", { "data-worker": row.worker, class: slow ? "straggler" : "" },
    html("th", { scope: "row" }, String(row.worker), ...badge, ...node),
    cell(run.state === "running" ? "now" : "last gradient", html("span", {}, ...nowWords(run, row))),
    cell("s/gradient", paceBar(run, row)),
    cell("share", `${shown(100 * row.share, 2)} %`),
    cell("delay", row.gradients ? whole(row.delay) : "–"),
    cell("time goes to", phaseBar(run.workers.phases, row.phases)));
}

/* Names of machines are shown if there are several. */
const several = ({ workers }) => new Set(workers.rows.map(({ node }) => node)).size > 1;

/* What a worker does, and since when; of a run that has ended, when the worker delivered last. */
function nowWords(run, row) {
  const small = (words) => html("small", { class: "muted" }, words);
  if (row.state === "left") return ["left"];
  if (row.state === "starting") return [STATE_WORDS.starting, small(`for ${duration(row.since)}`)];
  if (run.state !== "running") return [`at ${duration(Math.max(0, run.present - row.since))}`];
  return [STATE_WORDS[row.state], small(`delivered ${duration(row.since)} ago`)];
}

/* The pace as a number, and as a bar on a logarithmic scale from the fastest to the slowest worker. */
function paceBar(run, row) {
  const paces = run.workers.rows.map(({ pace }) => pace).filter((pace) => pace > 0);
  const [low, high] = [Math.min(...paces), Math.max(...paces)];
  const above = high > low && row.pace > 0 ? Math.log(row.pace / low) / Math.log(high / low) : 0;
  const bar = thinBar("pace", [svg("rect", { width: row.pace > 0 ? 6 + 94 * above : 0, height: 10, rx: 1 })]);
  return html("span", { class: "bars" }, html("b", {}, row.pace > 0 ? shown(row.pace, 3) : "–"), bar);
}

function thinBar(kind, shapes) {
  const size = { viewBox: "0 0 100 10", preserveAspectRatio: "none" };
  return svg("svg", { class: kind, ...size, "aria-hidden": "true" }, ...shapes);
}

function phaseBar(phases, shares) {
  let left = 0;
  const bars = phases.map((phase, place) => {
    const rect = svg("rect", { class: `phase-${phase}`, x: left, width: 100 * shares[place], height: 10 });
    left += 100 * shares[place];
    return rect;
  });
  const most = shares.indexOf(Math.max(...shares));
  const words = shares[most] > 0 ? `${phases[most]} ${shown(100 * shares[most], 2)} %` : "";
  const title = phases.map((phase, place) => `${phase} ${shown(100 * shares[place], 2)} %`).join(", ");
  return html("span", { class: "bars", title }, html("span", {}, words), thinBar("phases", bars));
}

function phaseKey(phases, rows) {
  const present = phases.filter((_, place) => rows.some(({ phases: shares }) => shares[place] >= 0.005));
  return present.map((phase) => {
    const sample = svg("rect", { class: `phase-${phase}`, width: 12, height: 12, rx: 2 });
    return html("span", {}, svg("svg", { width: 12, height: 12, "aria-hidden": "true" }, sample), phase);
  });
}
