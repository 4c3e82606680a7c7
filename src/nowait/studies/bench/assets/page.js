"use strict";
// Sorts a table by the column that is clicked, and switches between seconds, multiples of the best time, and ranks.
for (const header of document.querySelectorAll("th")) {
  header.addEventListener("click", () => {
    const table = header.closest("table"), body = table.tBodies[0];
    const place = [...header.parentNode.children].indexOf(header);
    const down = header.dataset.sorted === "up";
    const value = (row) => {
      const text = row.cells[place].dataset.value ?? row.cells[place].textContent;
      const number = Number.parseFloat(text);
      return Number.isNaN(number) ? text : number;
    };
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    for (const other of header.parentNode.children) delete other.dataset.sorted;
    header.dataset.sorted = down ? "down" : "up";
    body.append(...rows);
  });
}
for (const button of document.querySelectorAll("button[data-show]")) {
  button.addEventListener("click", () => {
    document.body.dataset.shown = button.dataset.show;
    for (const other of document.querySelectorAll("button[data-show]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
  });
}
