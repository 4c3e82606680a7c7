// Downloads of a chart as CSV, SVG and PNG, without a server: they work in a page opened as a file.
// Exposes: downloadButtons, csvText, svgText.
//
// downloadButtons({file, picture, rows, names}) -> three buttons. `file` is the name without its ending, `picture()`
// the SVG element, `rows()` a list of rows with the heading first, `names()` the series [{name, place}] to list below
// the picture (the page's legend is not part of the SVG).

const STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family",
  "paint-order", "font-weight",
];
const NAME_PIXELS = 20;

function downloadButtons({ file, picture, rows, names = () => [] }) {
  const kinds = {
    CSV: () => save(`${file}.csv`, new Blob([csvText(rows())], { type: "text/csv" })),
    PNG: async () => save(`${file}.png`, await pngBlob(picture(), names())),
    SVG: () => save(`${file}.svg`, new Blob([svgText(picture(), names())], { type: "image/svg+xml" })),
  };
  return Object.entries(kinds).map(([kind, download]) =>
    button(kind, download, { class: "small", "aria-label": `Download as ${kind}`, title: `Download as ${kind}` }),
  );
}

function csvText(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

/* The SVG as text: styles written into the elements, a background, and the names of the series below. */
function svgText(picture, names) {
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  const total = height + names.length * NAME_PIXELS;
  const copy = picture.cloneNode(true);
  copyStyles(picture, copy);
  copy.querySelector(".cursors")?.remove();
  for (const name of ["class", "style", "tabindex"]) copy.removeAttribute(name);
  const attributes = { width, height: total, viewBox: `0 0 ${width} ${total}` };
  for (const [name, value] of Object.entries(attributes)) copy.setAttribute(name, value);
  const page = getComputedStyle(document.body);
  copy.prepend(svg("rect", { width, height: total, fill: page.backgroundColor }));
  copy.append(...names.map((entry, row) => nameRow(entry, height + row * NAME_PIXELS, page)));
  return new XMLSerializer().serializeToString(copy);
}

function copyStyles(from, to) {
  const computed = getComputedStyle(from);
  for (const name of STYLES) to.style.setProperty(name, computed.getPropertyValue(name));
  to.removeAttribute("class");
  [...from.children].forEach((child, index) => copyStyles(child, to.children[index]));
}

function nameRow({ name, place }, top, page) {
  const probe = html("span");
  probe.style.color = colour(place);  // not as an attribute: a strict content security policy refuses those
  document.body.append(probe);
  const stroke = getComputedStyle(probe).color;
  probe.remove();
  const line = { x1: 14, x2: 40, y1: top + 6, y2: top + 6, stroke, "stroke-width": 2.5, "stroke-dasharray": dashes(place) };
  const words = { x: 50, y: top + 10, fill: page.color, "font-size": 12.5, "font-family": page.fontFamily };
  return svg("g", {}, svg("line", line), svg("text", words, name));
}

async function pngBlob(picture, names) {
  const text = svgText(picture, names);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = html("canvas", { width: image.width * 2, height: image.height * 2 });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function save(file, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: file });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
