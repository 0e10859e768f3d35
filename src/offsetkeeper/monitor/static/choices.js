// What the reader chooses, by search, filter, sort and shade, is in the address; the server makes that page too.

/** Show another choice of the same page without loading it, by `refresh`. */
export function choices(refresh) {
  const go = (address, how) => {
    history[how](null, "", address);
    refresh();
  };
  document.addEventListener("input", ({ target }) => {
    if (target.form?.id === "listing") go(asked(target.form, target), "replaceState");
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id === "listing") event.preventDefault(); // it is shown already
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-soft]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(link.href, "pushState");
    fill();
  });
  window.addEventListener("popstate", () => {
    fill();
    refresh();
  });
  fill();
}

function asked(form, changed) {
  const query = new URLSearchParams(location.search);
  const { search, status, sort } = form.elements;
  const values = { search: search.value, status: status.value, ...(changed === sort && { sort: sort.value }) };
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  return `${form.getAttribute("action")}?${query}`;
}

/** Make the form say what the address says. */
function fill() {
  const form = document.getElementById("listing");
  if (!form) return;
  const query = new URLSearchParams(location.search);
  form.elements.search.value = query.get("search") ?? "";
  form.elements.status.value = query.get("status") ?? "";
  form.elements.sort.value = (query.get("sort") ?? "status").replace(/^-/, "");
}
