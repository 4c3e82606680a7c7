// The page: draws everything after each update, and says whether the server answers.

const CONNECTION_WORDS = {
  live: "live", paused: "paused", gone: "server gone", refused: "not allowed", failed: "server error",
};

function startPage() {
  history.replaceState(null, "", location.pathname);  // the token is in a cookie now, and need not be on the screen
  themeButton(byId("theme"));
  const charts = [
    progressChart(byId("curves")), workersTable(byId("workers"), byId("verdict")),
    lanesOf(byId("timeline"), byId("delays")), speedChart(byId("speed")),
  ];
  const show = () => showAll(charts, refresh);
  const refresh = () => poll(show, tell);
  byId("pause").addEventListener("click", () => {
    store.paused = !store.paused;
    press(byId("pause"), store.paused);
    if (store.paused) tell("paused");
    else refresh();
  });
  byId("find").addEventListener("input", show);
  document.addEventListener("visibilitychange", refresh);
  refresh();
}

function tell(state, error) {
  const badge = byId("connection");
  if (store.paused && state === "live") state = "paused";
  badge.dataset.state = state;
  badge.textContent = CONNECTION_WORDS[state];
  const gone = byId("gone");
  gone.hidden = !["gone", "refused", "failed"].includes(state);
  if (!gone.hidden) gone.textContent = goneWords(state, error);
}

function goneWords(state, error) {
  if (state === "failed") return `The server cannot answer (${error.message}). Trying again.`;
  const folders = store.watched.map((folder) => (/^[\w./-]+$/.test(folder) ? folder : `'${folder}'`)).join(" ");
  const again = folders ? `Start it again with: nowait watch ${folders}` : "Start it again with: nowait watch";
  if (state === "refused") return "The server was started again, with another token. Open the address that it printed.";
  return `The server has ended. What you see is the last it sent. ${again}`;
}

function showAll(charts, refresh) {
  const focus = (id) => {
    store.focus = id;
    showAll(charts, refresh);
  };
  const none = store.shown.size === 0;
  byId("empty").hidden = !none;
  const waiting = `There is no run yet in ${store.watched.join(", ")}. It appears here when it starts.`;
  byId("empty").textContent = store.runs.length ? "Choose a run." : waiting;
  byId("content").hidden = none;
  showCards(byId("runs"), focus);
  showList(byId("list"), (id, shown) => {
    store.chosen = new Set(store.chosen ?? store.shown.keys());
    if (shown) store.chosen.add(id);
    else store.chosen.delete(id);
    refresh();
  });
  showProblems();
  showFocus();
  showDecision();
  document.title = titleOf();
  if (!none) for (const chart of charts) chart.redraw();
}

function showProblems() {
  const found = [...store.shown.values()].flatMap((run) => run.problems.map((words) => `${run.name}: ${words}.`));
  byId("problems").hidden = !found.length;
  byId("problems").textContent = found.join(" ");
}

/* With several runs, the headings say whose workers they are about. */
function showFocus() {
  const run = store.shown.get(store.focus);
  for (const box of document.querySelectorAll(".focus")) box.textContent = run && store.shown.size > 1 ? run.name : "";
  byId("workers-title").firstChild.textContent = run && run.state !== "running" ? "Who was slow" : "Who is slow now";
}

/* What the method decided last, and why. */
function showDecision() {
  const latest = store.shown.get(store.focus)?.decisions.at(-1);
  byId("decision").hidden = !latest;
  byId("decision").textContent = latest ? `Latest decision: ${latest[1]}.` : "";
}

function titleOf() {
  const run = store.shown.get(store.focus);
  return run ? `${run.state === "running" ? "▶ " : ""}${run.name}: ${run.words} · nowait watch` : "nowait watch";
}

startPage();
