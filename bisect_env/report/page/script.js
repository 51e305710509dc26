// What pointing and the keyboard add; without scripts everything is there, in tables as well.
"use strict";
for (const map of document.querySelectorAll(".map")) {
  const said = map.querySelector(".said");
  const grids = new Map();
  for (const table of map.querySelectorAll("table.heat")) {
    const cells = new Map();
    for (const cell of table.querySelectorAll(".part")) cells.set(`${cell.dataset.x} ${cell.dataset.y}`, cell);
    grids.set(table, cells);
    // One stop of the tab key a heat map; the arrow keys go on from there.
    const first = table.querySelector(".part[aria-label*='; first bad;']") || table.querySelector(".part");
    if (!first) continue;
    first.setAttribute("tabindex", "0");
    // Of a wide matrix what matters is seen first; otherwise the names of the rows are, at the left.
    const frame = table.parentElement, box = first.getBoundingClientRect(), outer = frame.getBoundingClientRect();
    if (box.right > outer.right) frame.scrollLeft = box.left - outer.left - outer.width / 2;
    // Its row may have scrolled out of sight with its name: what it is of is said above.
    const label = first.getAttribute("aria-label") || "";
    if (label.includes("; first bad;")) said.textContent = label;
  }
  const tell = (event) => {
    const cell = event.target.closest(".part");
    if (cell) said.textContent = cell.getAttribute("aria-label");
  };
  // A page that scrolls beneath a pointer that rests says nothing of what the pointer means.
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
