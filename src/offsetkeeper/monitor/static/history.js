// The history is one tab stop: the arrow keys go from one list of ranges to the next.

const list = () => [...document.querySelectorAll("#history summary")];
let current = null; // the version of the entry that the tab key comes to

/** Leave one tab stop; called again after each change of the page. */
export function rows() {
  const all = list();
  const stop = all.find((each) => version(each) === current) ?? all[0];
  for (const each of all) each.tabIndex = each === stop ? 0 : -1;
}

function version(summary) {
  return summary.closest("tr").dataset.key;
}

document.addEventListener("focusin", ({ target }) => {
  if (!target.matches?.("#history summary")) return;
  current = version(target);
  rows();
});
document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.("#history summary")) return;
  const all = list();
  const index = all.indexOf(event.target);
  const next = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: all.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  all[Math.max(0, Math.min(all.length - 1, next))].focus();
});
