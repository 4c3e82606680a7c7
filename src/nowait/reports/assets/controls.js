// Small controls that charts and pages share.
// Exposes: button, toggleButton, choice, slider, selectBox, toolbar, sortableTable, themeButton, press.

const press = (element, pressed) => element.setAttribute("aria-pressed", String(pressed));

function button(text, onclick, attributes = {}) {
  const made = html("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onclick);
  return made;
}

/* A button that is pressed or not; `onchange(pressed)`. */
function toggleButton(text, pressed, onchange, attributes = {}) {
  const made = button(text, () => {
    press(made, made.getAttribute("aria-pressed") !== "true");
    onchange(made.getAttribute("aria-pressed") === "true");
  }, { "aria-pressed": String(pressed), ...attributes });
  return made;
}

/* Buttons of which exactly one is pressed: options are pairs [value, text]; `onchange(value)`. */
function choice(label, options, value, onchange) {
  const buttons = options.map(([option, text]) =>
    button(text, () => {
      buttons.forEach((other) => press(other, other.dataset.value === option));
      onchange(option);
    }, { "data-value": option, "aria-pressed": String(option === value) }),
  );
  return html("div", { role: "group", "aria-label": label, class: "choice" }, ...buttons);
}

function slider(text, { min = 0, max = 1, step = 0.01, value = 0 }, onchange) {
  const input = html("input", { type: "range", min, max, step, value });
  const said = html("output", {}, Number(value).toFixed(2));
  input.addEventListener("input", () => {
    said.textContent = Number(input.value).toFixed(2);
    onchange(Number(input.value));
  });
  return html("label", { class: "slider" }, text, input, said);
}

/* A labelled select element: options are pairs [value, text]; `onchange(value)`. */
function selectBox(text, options, value, onchange) {
  const select = html("select", {}, ...options.map(([option, words]) => html("option", { value: option }, words)));
  select.value = value;
  select.addEventListener("change", () => onchange(select.value));
  return html("label", { class: "select" }, text, select);
}

/* A row of controls; those in `ends` (downloads) stand at its end. */
function toolbar(controls, ends = []) {
  return html("div", { class: "toolbar" }, ...controls, html("div", { class: "ends" }, ...ends));
}

/* Sorts a table by the column whose heading is clicked: by the data-value of its cells, or by their text. */
function sortableTable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const sorter = button(heading.textContent, () => sortBy(table, headings, column), { class: "sorter" });
    heading.replaceChildren(sorter);
  });
}

function sortBy(table, headings, column) {
  const descending = headings[column].getAttribute("aria-sort") === "ascending";
  headings.forEach((heading) => heading.removeAttribute("aria-sort"));
  headings[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => compareCells(a.cells[column], b.cells[column]) * (descending ? -1 : 1));
  body.append(...rows);
}

function compareCells(first, second) {
  const [a, b] = [first, second].map((cell) => cell.dataset.value ?? cell.textContent);
  const [x, y] = [Number(a), Number(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x === y ? 0 : x - y;
  return a.localeCompare(b, "en", { numeric: true });
}

/* Makes a button switch between light and dark; until it is pressed the page follows the system. */
function themeButton(element) {
  const root = document.documentElement;
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches);
  const rename = () => (element.textContent = isDark() ? "Light theme" : "Dark theme");
  element.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    rename();
  });
  preferred.addEventListener("change", rename);
  rename();
}
