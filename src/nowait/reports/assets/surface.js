// The drawing surface of every chart: one SVG with axes, a cursor (pointer, touch, arrow keys) and zooming on x.
// Exposes: surface, chartHeight, showMessage, KEYS.
//
// surface(box) -> {draw(spec), picture, clear()}. `draw` replaces what is drawn; the SVG element itself and its focus
// stay, so that a live page can draw every second. The spec of a drawing:
//   height, left      pixels; the width is that of the box
//   label             a sentence for screen readers
//   x, y              (range in pixels) => scale
//   xTitle, yTitle    words at the axes; xTicks, yTicks: lists of ticks instead of the scale's own
//   paint(drawn)      appends marks to drawn.plot (clipped) or drawn.over; drawn has area, x, y, width, height
//   stops             the number of cursor positions; find(pixelX, pixelY): the position at a point, or -1
//   tell(stop, y)     what to show there: {draw: elements, ...}; it is passed to readout(told), null for no position
//   zoom(range)       called with [from, to] after a drag, and with null by a double click; absent: no zooming

const KEYS = "Arrow keys read values; plus and minus zoom, Escape shows everything again.";
const DRAG_PIXELS = 5;
let clips = 0;

const chartHeight = (box) => Math.round(Math.min(430, Math.max(280, box.clientWidth * 0.45)));

function showMessage(box, text) {
  box.replaceChildren(html("p", { class: "hint" }, text));
}

function surface(box) {
  const layer = svg("g");
  const cursor = svg("g", { class: "cursors" });
  const picture = svg("svg", { role: "img", tabindex: "0" }, layer, cursor);
  const state = { spec: null, drawn: null, current: -1, pixelY: null, dragged: null };
  box.classList.add("chart");
  box.replaceChildren(picture);
  const show = (stop, pixelY = null) => {
    const { spec, drawn } = state;
    Object.assign(state, { current: stop, pixelY });
    const told = stop < 0 || !spec.tell ? null : spec.tell(stop, pixelY);
    cursor.replaceChildren(...(told ? told.draw : []), ...selection(drawn, state.dragged));
    if (spec.readout) spec.readout(told);
  };
  const draw = (spec) => {
    state.spec = spec;
    state.drawn = frame(box, picture, layer, spec);
    spec.paint(state.drawn);
    show(state.current < spec.stops ? state.current : -1, state.pixelY);
    return state.drawn;
  };
  followPointer(picture, state, show);
  followKeys(picture, state, show);
  return { draw, picture, clear: () => show(-1) };
}

function frame(box, picture, layer, { height, left = 66, label, x, y, xTitle, yTitle, xTicks, yTicks }) {
  const width = Math.max(260, box.clientWidth);
  const area = { left, right: width - 14, top: yTitle ? 26 : 10, bottom: height - (xTitle ? 44 : 24) };
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("aria-label", label);
  const drawn = { box, picture, area, width, height, over: svg("g") };
  drawn.x = x([area.left, area.right]);
  drawn.y = y([area.bottom, area.top]);
  const across = xTicks || drawn.x.ticks(Math.max(3, Math.floor((area.right - area.left) / 95)));
  const upward = yTicks || drawn.y.ticks(Math.max(3, Math.floor((area.bottom - area.top) / 36)));
  drawn.plot = svg("g", { "clip-path": `url(#clip-${(clips += 1)})` });
  layer.replaceChildren(
    xAxis(drawn, across), yAxis(drawn, upward), titles(drawn, xTitle, yTitle), clip(area), drawn.plot, drawn.over,
  );
  return drawn;
}

function clip(area) {
  const size = { width: area.right - area.left, height: area.bottom - area.top + 2 };
  return svg("clipPath", { id: `clip-${clips}` }, svg("rect", { x: area.left, y: area.top - 1, ...size }));
}

function xAxis({ area, x }, ticks) {
  const group = svg("g");
  for (const tick of ticks) {
    const at = x(tick);
    group.append(svg("line", { class: "grid", x1: at, x2: at, y1: area.top, y2: area.bottom }));
    group.append(svg("text", { x: at, y: area.bottom + 17, "text-anchor": "middle" }, x.label(tick)));
  }
  group.append(svg("line", { class: "frame", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }));
  return group;
}

function yAxis({ area, y }, ticks) {
  const group = svg("g");
  for (const tick of ticks) {
    const at = y(tick);
    group.append(svg("line", { class: "grid", x1: area.left, x2: area.right, y1: at, y2: at }));
    group.append(svg("text", { x: area.left - 8, y: at + 4, "text-anchor": "end" }, y.label(tick)));
  }
  return group;
}

function titles({ area, height }, xTitle, yTitle) {
  const middle = (area.left + area.right) / 2;
  const group = svg("g");
  if (xTitle) group.append(svg("text", { class: "title", x: middle, y: height - 8, "text-anchor": "middle" }, xTitle));
  if (yTitle) group.append(svg("text", { class: "title", x: 4, y: 14 }, yTitle));
  return group;
}

// Cursor and zoom

function selection(drawn, dragged) {
  if (!drawn || !dragged || Math.abs(dragged.to - dragged.from) < DRAG_PIXELS) return [];
  const { area } = drawn;
  const [left, right] = [Math.min(dragged.from, dragged.to), Math.max(dragged.from, dragged.to)];
  const box = { x: left, width: right - left, y: area.top, height: area.bottom - area.top };
  return [svg("rect", { class: "selection", ...box })];
}

function followPointer(picture, state, show) {
  const pixel = (event) => {
    const bounds = picture.getBoundingClientRect();
    const factor = state.drawn.width / bounds.width;
    return [(event.clientX - bounds.left) * factor, (event.clientY - bounds.top) * factor];
  };
  const inside = (at) => Math.min(state.drawn.area.right, Math.max(state.drawn.area.left, at));
  const point = (event) => {
    const [x, y] = pixel(event);
    if (state.dragged) state.dragged.to = inside(x);
    show(state.spec.find ? state.spec.find(x, y) : -1, y);
  };
  picture.addEventListener("pointerdown", (event) => {
    const [x] = pixel(event);
    if (state.spec.zoom && event.button === 0 && event.pointerType !== "touch") {
      state.dragged = { from: inside(x), to: inside(x) };
      picture.setPointerCapture(event.pointerId);
    }
    point(event);
  });
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerup", () => finishDrag(state, show));
  picture.addEventListener("pointercancel", () => finishDrag(state, show, true));
  picture.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && !state.dragged && show(-1));
  picture.addEventListener("blur", () => show(-1));
  picture.addEventListener("dblclick", () => state.spec.zoom && state.spec.zoom(null));
}

function finishDrag(state, show, cancelled = false) {
  const { dragged, drawn, spec } = state;
  state.dragged = null;
  if (!dragged) return;
  const [left, right] = [Math.min(dragged.from, dragged.to), Math.max(dragged.from, dragged.to)];
  if (cancelled || right - left < DRAG_PIXELS) return show(state.current, state.pixelY);
  show(-1);
  spec.zoom([drawn.x.invert(left), drawn.x.invert(right)]);
}

function followKeys(picture, state, show) {
  picture.addEventListener("keydown", (event) => {
    const { spec, current } = state;
    const moves = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: spec.stops - 1 };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") {
      if (current < 0 && spec.zoom) spec.zoom(null);
      else show(-1);
    } else if (spec.zoom && zoomKey(event, state)) event.preventDefault();
    else if (event.key in moves && spec.stops) {
      event.preventDefault();
      show(Math.min(spec.stops - 1, Math.max(0, moves[event.key])));
    }
  });
}

/* Plus and minus zoom about the middle of the plot, Shift with an arrow key moves it. True for these keys. */
function zoomKey(event, { drawn, spec }) {
  const parts = { "+": [0.25, 0.75], "=": [0.25, 0.75], "-": [-0.5, 1.5] };
  if (event.shiftKey) Object.assign(parts, { ArrowRight: [0.25, 1.25], ArrowLeft: [-0.25, 0.75] });
  const part = parts[event.key];
  if (!part) return false;
  spec.zoom(part.map((place) => drawn.x.invert(drawn.area.left + place * (drawn.area.right - drawn.area.left))));
  return true;
}
