// Scales: functions from values to pixels, with `invert`, `draws`, `ticks(count)`, `label(tick)` and `domain`.
// Exposes: linear, logarithmic, counting (logarithmic, integer ticks), rowScale (one row per name), extent, clampRange.

function linear([from, to], [start, end]) {
  const scale = (value) => start + ((value - from) / (to - from)) * (end - start);
  scale.invert = (pixel) => from + ((pixel - start) / (end - start)) * (to - from);
  scale.draws = (value) => value !== null && value !== undefined;
  scale.ticks = (count) => linearTicks(from, to, count);
  scale.label = (value) => linearLabel(value, to - from, Math.max(Math.abs(from), Math.abs(to)));
  scale.domain = [from, to];
  return scale;
}

/* Uses enough digits to distinguish neighbouring ticks. */
function linearLabel(value, span, largest) {
  if (value === 0) return "0";
  const digits = Math.ceil(Math.log10(largest / span)) + 3;
  return shown(value, Math.min(12, Math.max(3, digits)));
}

function linearTicks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [10, 5, 2, 1].find((multiple) => rough / power >= multiple / 1.45 || multiple === 1) * power;
  const ticks = [];
  for (let index = Math.ceil(from / step); index * step <= to + step * 1e-9; index += 1) ticks.push(index * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

function logarithmic([from, to], range) {
  const inner = linear([Math.log10(from), Math.log10(to)], range);
  const scale = (value) => inner(Math.log10(value));
  scale.invert = (pixel) => 10 ** inner.invert(pixel);
  scale.draws = (value) => value !== null && value !== undefined && value > 0;
  scale.ticks = (count) => logTicks(from, to, count);
  scale.label = (value) => logLabel(value, from < 1e-4 || to > 1e6);
  scale.domain = [from, to];
  return scale;
}

function counting(domain, range) {
  const scale = logarithmic(domain, range);
  const ticks = scale.ticks;
  scale.ticks = (count) => ticks(count).filter(Number.isInteger);
  return scale;
}

function logTicks(from, to, count) {
  const first = Math.ceil(Math.log10(from) - 1e-9);
  const last = Math.floor(Math.log10(to) + 1e-9);
  const decades = last - first + 1;
  if (decades < 3) return fineTicks(from, to, count);
  const every = Math.ceil(decades / Math.max(2, count));
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  return ticks;
}

function fineTicks(from, to, count) {
  if (to / from < 1.5) return linearTicks(from, to, count);
  for (const multiples of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1)
      for (const multiple of multiples) ticks.push(Number((multiple * 10 ** power).toPrecision(6)));
    const inside = ticks.filter((tick) => tick >= from * 0.999 && tick <= to * 1.001);
    if (inside.length < 3) return linearTicks(from, to, Math.min(count, 5));
    if (inside.length <= count || multiples.length === 1) return inside;
  }
  return [];
}

function logLabel(value, wide) {
  const power = Math.round(Math.log10(value));
  const isPower = Math.abs(Math.log10(value) - power) < 1e-9;
  return isPower && (wide || power < -3 || power > 6) && power !== 0 ? `10${superscript(power)}` : shown(value, 3);
}

/* Rows from top to bottom, or columns from left to right: the scale of row 0, 1, 2, ... is the middle of its row. */
function rowScale(names, [start, end]) {
  const scale = (row) => start + ((row + 0.5) / names.length) * (end - start);
  scale.size = Math.abs(end - start) / names.length;
  scale.row = (pixel) => {
    const row = Math.floor(((pixel - start) / (end - start)) * names.length);
    return Math.min(names.length - 1, Math.max(0, row));
  };
  scale.ticks = (count) => names.map((_, row) => row).filter((row) => row % Math.ceil(names.length / count) === 0);
  scale.label = (row) => names[row];
  scale.domain = [0, names.length];
  return scale;
}

/* The lowest and highest of some values that can be drawn; null if there is none. */
function extent(values, log = false) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || value === undefined || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/* The part of a range inside the full one; null if it is all of it, or too small to draw. */
function clampRange([from, to], full) {
  const [low, high] = [Math.max(from, full[0]), Math.min(to, full[1])];
  if (low <= full[0] && high >= full[1]) return null;
  return high - low > (full[1] - full[0]) * 1e-9 ? [low, high] : null;
}
