// The page of a report: its data, the theme and the tables; the charts of runs and sweeps are in their own files.

const report = JSON.parse(byId("data").textContent);
const methods = report.methods;
const AXES = { time: "time (s)", gradients: "gradients", step: "steps" };
const AXIS_NAMES = [["time", "time"], ["gradients", "gradients"], ["step", "steps"]];
const ERROR = report.minimum === 0 ? "loss" : "loss − F*";

const xWords = (axis) => (place) =>
  axis === "time" ? `after ${shown(place, 4)} s` : `after ${whole(place)} ${AXES[axis]}`;
const methodOptions = () => methods.map((method, place) => [String(place), method.name]);

/* The main chart takes what is left of the window below the header, so that it is seen without scrolling. */
function mainHeight(box) {
  const left = Math.max(320, window.innerHeight - 330);
  return Math.round(Math.min(left, Math.max(280, box.clientWidth * 0.55)));
}

window.addEventListener("DOMContentLoaded", () => {
  themeButton(byId("theme"));
  document.querySelectorAll("table.sortable").forEach(sortableTable);
  if (methods.length) drawRuns();
  if (report.sweeps.length) drawSweeps();
});
