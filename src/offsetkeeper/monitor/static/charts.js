// The values of a chart: of the moment that is pointed at, or chosen with the arrow keys; else of the newest one.

const chosen = new WeakMap(); // of each chart, the time of the moment that is shown
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };

/** Show the values of all charts of the page; called again after each change of it. */
export function charts() {
  for (const plot of document.querySelectorAll("[data-chart] .plot")) {
    if (!plot.listens) listen(plot);
    show(plot);
  }
}

function listen(plot) {
  plot.listens = true;
  for (const kind of ["pointermove", "pointerdown"]) {
    plot.addEventListener(kind, ({ clientX }) => {
      const { left, width } = plot.getBoundingClientRect();
      const x = ((clientX - left) / width) * 1000;
      choose(plot, values(plot).reduce((one, other) => (Math.abs(other[1] - x) < Math.abs(one[1] - x) ? other : one)));
    });
  }
  plot.addEventListener("pointerleave", () => document.activeElement !== plot && choose(plot, null));
  plot.addEventListener("blur", () => choose(plot, null));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(plot, null);
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const all = values(plot);
    const next = Math.max(0, Math.min(all.length - 1, at(plot, all) + STEPS[event.key]));
    choose(plot, all[next]);
  });
}

function choose(plot, value) {
  if (value) chosen.set(plot, value[0]);
  else chosen.delete(plot);
  show(plot);
}

function values(plot) {
  return JSON.parse(plot.dataset.values);
}

/** The moment that is shown; of one that has left the picture the next. */
function at(plot, all) {
  const index = chosen.has(plot) ? all.findIndex(([time]) => time >= chosen.get(plot)) : -1;
  return index < 0 ? all.length - 1 : index;
}

function show(plot) {
  const all = values(plot);
  const index = at(plot, all);
  const [, x, heights, text] = all[index];
  plot.setAttribute("aria-valuenow", index + 1);
  plot.setAttribute("aria-valuetext", text);
  plot.parentElement.querySelector(".readout").textContent = text;
  const pointed = chosen.has(plot);
  plot.querySelector(".cursor").setAttribute("d", pointed ? `M${x} 0V200` : "");
  plot.querySelector(".spot").setAttribute("d", pointed ? heights.map((y) => `M${x} ${y}h0`).join("") : "");
}
