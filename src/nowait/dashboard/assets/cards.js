// One card for every run that is shown, and the list of all runs.
// Exposes: showCards, showList, duration, timesWords, endedColumns.

const cards = new Map();

/* Seconds in words: 0.012 s, 4.2 s, 3 min 20 s, 2 h 5 min. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 120) return `${shown(seconds, seconds < 10 ? 2 : 3)} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}

/* Columns of the grid that have ended: what happened in them is known. */
const endedColumns = ({ grid, present }) => (grid ? Math.min(grid.columns, Math.floor(present / grid.width)) : 0);

/* Over the latest columns that have ended, about a twentieth of the run; of the whole run if it is over. */
function stepsPerSecond(run) {
  if (run.state !== "running") return run.time > 0 ? run.steps / run.time : null;
  const last = endedColumns(run);
  if (last < 1) return null;
  const first = Math.max(0, last - Math.max(2, Math.round(last / 20)));
  const before = first > 0 ? run.grid.steps[first - 1] : 0;
  return (run.grid.steps[last - 1] - before) / ((last - first) * run.grid.width);
}

function showCards(box, onfocus) {
  for (const [id, card] of cards) if (!store.shown.has(id)) card.element.remove(), cards.delete(id);
  for (const run of store.shown.values()) {
    if (!cards.has(run.id)) cards.set(run.id, newCard(run, onfocus));
    fillCard(cards.get(run.id), run);
  }
  const wanted = [...store.shown.keys()].map((id) => cards.get(id).element);
  if (wanted.some((element, at) => box.children[at] !== element)) box.replaceChildren(...wanted);
}

function newCard(run, onfocus) {
  const names = ["name", "state", "facts", "numbers", "slow", "bar"];
  const parts = Object.fromEntries(names.map((name) => [name, html("span", { class: name })]));
  const done = html("span", { class: "done" });
  parts.bar.append(done);
  const element = button("", () => onfocus(run.id), { class: "card", "data-run": run.id });
  element.append(swatch(run.place), ...Object.values(parts));
  return { element, done, ...parts };
}

function fillCard(card, run) {
  press(card.element, run.id === store.focus);
  card.element.dataset.state = run.state;
  card.name.textContent = run.name;
  card.state.textContent = run.diverged ? `${run.words}, diverged` : run.words;
  card.facts.textContent = run.facts.join(" · ");
  const rate = stepsPerSecond(run);
  const numbers = [
    ["step", whole(run.steps)], ["loss", run.loss === null ? "–" : shown(run.loss)], ["time", duration(run.time)],
    ["steps/s", rate === null ? "–" : shown(rate)], ["workers", whole(run.live_workers)],
  ];
  const pair = ([name, value]) => html("span", {}, html("small", {}, name), html("b", {}, value));
  card.numbers.replaceChildren(...numbers.map(pair));
  card.slow.textContent = slowWords(run);
  card.slow.dataset.slow = String(Boolean(run.straggler));
  const part = progress(run);
  card.bar.hidden = part === null;
  card.done.style.width = `${100 * (part ?? 0)}%`;
}

const timesWords = (times) => (times === null ? "far slower" : `${shown(times, 2)} × slower`);

function slowWords(run) {
  if (run.read < 1) return `reading the trace, ${Math.floor(100 * run.read)} %`;
  const updated = `${run.state === "running" ? "updated" : "ended"} ${duration(run.age)} ago`;
  if (!run.straggler) return run.live_workers > 1 ? `no straggler · ${updated}` : updated;
  const is = run.state === "running" ? "is" : "was";
  return `worker ${run.straggler.worker} ${is} ${timesWords(run.straggler.times)} · ${updated}`;
}

/* Which part of the budget is used: of steps, gradients and seconds, the one that ends the run first. */
function progress({ goal, steps, arrivals, time, state }) {
  const limits = [[goal.steps, steps], [goal.gradients, arrivals], [goal.seconds, time]].filter(([limit]) => limit);
  const parts = limits.map(([limit, now]) => now / limit);
  return parts.length ? Math.min(1, state === "finished" ? 1 : Math.max(...parts)) : null;
}

// The list

function showList(list, onchoose) {
  const more = store.runs.length > store.shown.size || store.chosen !== null;
  list.hidden = !more || store.runs.length < 2;
  const counts = `${store.shown.size} of ${store.runs.length} runs`;
  list.querySelector("summary").textContent = `${counts} are shown: choose others`;
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const box = byId("choices");
  const wanted = store.runs.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const signature = wanted.map(({ id, state }) => `${id} ${state} ${store.shown.has(id)}`).join();
  if (box.dataset.signature === signature) return;
  box.dataset.signature = signature;
  box.replaceChildren(...wanted.map((run) => choiceOf(run, onchoose)));
}

function choiceOf(run, onchoose) {
  const tick = html("input", { type: "checkbox", value: run.id });
  tick.checked = store.shown.has(run.id);
  tick.addEventListener("change", () => onchoose(run.id, tick.checked));
  return html("label", {}, tick, html("span", {}, run.name), html("small", { class: "muted" }, run.state));
}
