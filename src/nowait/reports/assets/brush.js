// A strip that shows a whole run in small, with a window that can be dragged, resized and moved by keys.
// Exposes: brush.
//
// brush(box, {height, onchange}) -> {draw({domain, range, paint, left})}. `domain` is all of x, `range` the window or
// null for all, `left` the margin; paint(drawn) appends the picture to drawn.plot, with drawn.x, drawn.area and
// drawn.width. `onchange(range)` is called while the window is dragged.

const HANDLE_PIXELS = 8;
const BRUSH_LABEL = "Part of the run that is shown. Arrow keys move it, plus and minus resize it.";

function brush(box, { height, onchange }) {
  const picture = svg("svg", { role: "slider", tabindex: "0", "aria-label": BRUSH_LABEL });
  const state = { drag: null };
  box.classList.add("brush");
  box.replaceChildren(picture);
  const draw = ({ domain, range, paint, left = 66 }) => {
    const width = Math.max(260, box.clientWidth);
    const area = { left, right: width - 14, top: 2, bottom: height - 2 };
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const drawn = { area, width, height, plot: svg("g"), x: linear(domain, [area.left, area.right]) };
    Object.assign(state, { domain, range, drawn });
    const whole = { x: area.left, width: area.right - area.left, y: area.top, height: area.bottom - area.top };
    const outline = svg("rect", { class: "frame", ...whole });
    picture.replaceChildren(outline, drawn.plot, ...brushWindow(drawn, range ?? domain));
    picture.setAttribute("aria-valuetext", range ? `${shown(range[0])} to ${shown(range[1])}` : "the whole run");
    paint(drawn);
  };
  brushPointer(picture, state, onchange);
  picture.addEventListener("keydown", (event) => {
    const next = brushKey(event.key, state.range ?? state.domain);
    if (!next) return;
    event.preventDefault();
    onchange(next);
  });
  picture.addEventListener("dblclick", () => onchange(null));
  return { draw, picture };
}

function brushWindow({ x, area }, range) {
  const [left, right] = range.map(x);
  const tall = { y: area.top, height: area.bottom - area.top };
  const middle = { width: 6, rx: 2, y: area.top + 8, height: Math.max(4, tall.height - 16) };
  const handle = (at) => svg("rect", { class: "handle", x: at - 3, ...middle });
  return [
    svg("rect", { class: "outside", x: area.left, width: Math.max(0, left - area.left), ...tall }),
    svg("rect", { class: "outside", x: right, width: Math.max(0, area.right - right), ...tall }),
    svg("rect", { class: "window", x: left, width: Math.max(1, right - left), ...tall }),
    handle(left),
    handle(right),
  ];
}

function brushPointer(picture, state, onchange) {
  const valueAt = (event) => {
    const bounds = picture.getBoundingClientRect();
    const pixel = (event.clientX - bounds.left) * (state.drawn.width / bounds.width);
    return [pixel, state.drawn.x.invert(Math.min(state.drawn.area.right, Math.max(state.drawn.area.left, pixel)))];
  };
  picture.addEventListener("pointerdown", (event) => {
    const [pixel, value] = valueAt(event);
    state.drag = brushDrag(state, pixel, value);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (state.drag) onchange(draggedRange(state, valueAt(event)[1]));
  });
  for (const kind of ["pointerup", "pointercancel"]) picture.addEventListener(kind, () => (state.drag = null));
}

/* A drag from an edge moves this edge; from inside the window it moves the window; elsewhere it makes a new one. */
function brushDrag({ drawn, range, domain }, pixel, value) {
  const [from, to] = range ?? domain;
  if (Math.abs(pixel - drawn.x(from)) <= HANDLE_PIXELS) return { fixed: to };
  if (Math.abs(pixel - drawn.x(to)) <= HANDLE_PIXELS) return { fixed: from };
  if (range && value > from && value < to) return { grabbed: value, from, to };
  return { fixed: value };
}

function draggedRange({ drag, domain }, value) {
  if (drag.fixed !== undefined) return [Math.min(drag.fixed, value), Math.max(drag.fixed, value)];
  const moved = Math.min(domain[1] - drag.to, Math.max(domain[0] - drag.from, value - drag.grabbed));
  return [drag.from + moved, drag.to + moved];
}

function brushKey(key, [from, to]) {
  const part = (to - from) / 4;
  const changes = {
    ArrowLeft: [from - part, to - part], ArrowRight: [from + part, to + part], "+": [from + part, to - part],
    "=": [from + part, to - part], "-": [from - 2 * part, to + 2 * part], Escape: [-Infinity, Infinity],
  };
  return changes[key];
}
