// A legend that is also the readout: one row per series with its value at the cursor, so that nothing covers the plot.
// Exposes: legend.
//
// legend(box, {items, onchange, idle}) -> {update(items), visible(item), show(title, cells, near), names()}.
// `items` are {name, place, note, good, off}; names are unique; the note of
// a series that is off the chart stands in place of its value. A click hides or shows a series; a double click,
// Alt+click or the button "only" shows it alone, and once more shows all. From FILTER_FROM items on there is a box to
// filter by name.
// `onchange()` is called when another set of series is visible. `idle` is the title while there is no cursor.
// `show(title, cells, near)`: cells by name, each {value, range}; `near` is the name of the series to mark.

const FILTER_FROM = 6;

function legend(box, { items, onchange, idle = "" }) {
  const state = { items: [], hidden: new Set(), words: [], rows: new Map() };
  const title = html("strong", { class: "at", role: "status" });
  const list = html("div", { class: "rows", role: "group", "aria-label": "Series shown" });
  const matches = (item) => state.words.every((word) => item.name.toLowerCase().includes(word));
  const visible = (item) => !state.hidden.has(item.name) && matches(item);
  const refresh = () => {
    for (const item of state.items) refreshRow(state.rows.get(item.name), matches(item), !state.hidden.has(item.name));
    onchange();
  };
  const toggle = (name) => {
    if (!state.hidden.delete(name)) state.hidden.add(name);
    refresh();
  };
  const solo = (name) => {
    const others = state.items.map((item) => item.name).filter((other) => other !== name);
    const isAlone = !state.hidden.has(name) && others.every((other) => state.hidden.has(other));
    state.hidden = new Set(isAlone ? [] : others);
    refresh();
  };
  const filter = filterBox((text) => {
    state.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    refresh();
  });
  const update = (next) => {
    state.items = next;
    filter.hidden = next.length < FILTER_FROM;
    syncRows(state, list, (item) => legendRow(item, toggle, solo));
  };
  const show = (words, cells, near = null) => {
    title.textContent = words ?? idle;
    for (const [name, row] of state.rows) showCell(row, cells[name], name === near);
  };
  box.classList.add("legend");
  box.replaceChildren(title, filter, list);
  update(items);
  const names = () => state.items.filter(visible);
  return { update, visible, show, names };
}

function filterBox(onchange) {
  const input = html("input", { type: "search", class: "filter", placeholder: "filter" });
  input.setAttribute("aria-label", "Filter by name");
  input.addEventListener("input", () => onchange(input.value));
  return input;
}

/* Keeps the rows of names that stay, so that a live page does not lose the focus. */
function syncRows(state, list, make) {
  const rows = new Map();
  for (const item of state.items) {
    const row = state.rows.get(item.name) ?? make(item);
    row.note.textContent = item.off ? "" : item.note ?? "";
    row.note.className = item.good ? "good" : "";
    rows.set(item.name, row);
  }
  state.rows = rows;
  const wanted = [...rows.values()].map((row) => row.element);
  if (wanted.length !== list.children.length || wanted.some((element, at) => list.children[at] !== element))
    list.replaceChildren(...wanted);
}

function legendRow(item, toggle, solo) {
  const note = html("small", {});
  const name = html("button", { type: "button", "aria-pressed": "true", class: "name", title: item.name });
  name.append(swatch(item.place), html("span", {}, item.name, note));
  name.addEventListener("click", (event) => (event.altKey ? solo(item.name) : toggle(item.name)));
  name.addEventListener("dblclick", () => solo(item.name));
  const only = button("only", () => solo(item.name), { class: "only", "aria-label": `Show only ${item.name}` });
  const value = html("span", { class: "value" });
  const range = html("span", { class: "range" });
  const element = html("div", { class: "row" }, name, html("span", { class: "values" }, value, range), only);
  return { element, name, value, range, note };
}

function refreshRow(row, matches, shown) {
  row.element.hidden = !matches;
  press(row.name, shown);
}

function showCell(row, cell, near) {
  row.value.textContent = cell ? cell.value : "";
  row.range.textContent = cell && cell.range ? cell.range : "";
  row.element.classList.toggle("near", near);
}
