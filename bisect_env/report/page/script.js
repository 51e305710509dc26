// Adds pointing and arrow keys; without scripts the tables show everything.
"use strict";
for (const map of document.querySelectorAll(".map")) {
  const said = map.querySelector(".said");
  const grids = new Map();
  for (const table of map.querySelectorAll("table.heat")) {
    const cells = new Map();
    for (const cell of table.querySelectorAll(".part")) cells.set(`${cell.dataset.x} ${cell.dataset.y}`, cell);
    grids.set(table, cells);
    // The tab key stops once at each heat map; the arrow keys move within it.
    const first = table.querySelector(".part.first-bad") || table.querySelector(".part");
    if (!first) continue;
    first.setAttribute("tabindex", "0");
    // Scroll a wide map to its boundary.
    const frame = table.parentElement, box = first.getBoundingClientRect(), outer = frame.getBoundingClientRect();
    if (box.right > outer.right) frame.scrollLeft = box.left - outer.left - outer.width / 2;
    // The name of its row may have scrolled out of sight: the line above repeats it.
    if (first.matches(".first-bad")) said.textContent = first.getAttribute("aria-label");
  }
  const tell = (event) => {
    const cell = event.target.closest(".part");
    if (cell) said.textContent = cell.getAttribute("aria-label");
  };
  // Ignore events that come from scrolling under a pointer that has not moved.
  let pointer = "";
  map.addEventListener("mousemove", (event) => {
    const here = `${event.clientX} ${event.clientY}`;
    if (here !== pointer) tell(event);
    pointer = here;
  });
  map.addEventListener("focusin", tell);
  map.addEventListener("click", tell);
  map.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const cell = event.target.closest(".part");
    if (!step || !cell) return;
    const cells = grids.get(cell.closest("table.heat"));
    const next = cells.get(`${Number(cell.dataset.x) + step[0]} ${Number(cell.dataset.y) + step[1]}`);
    if (!next) return;
    event.preventDefault();
    cell.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
  const controls = [...map.querySelectorAll("select")];
  const choose = () => {
    for (const slice of map.querySelectorAll("section[data-values]")) {
      const values = JSON.parse(slice.dataset.values);
      slice.hidden = controls.some((one) => one.value !== "" && values[one.name] !== one.value.slice(1));
    }
    const none = map.querySelector(".none");
    if (none) none.hidden = [...map.querySelectorAll("section[data-values]")].some((slice) => !slice.hidden);
  };
  for (const one of controls) one.addEventListener("change", choose);
  if (controls.length) {
    map.querySelector(".controls").hidden = false;
    choose();
  }
}
