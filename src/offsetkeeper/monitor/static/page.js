// Keeps an open page true: each new look is told by the server, then the page is fetched again and what differs is
// changed in place, so that focus, selection, scrolling and opened details stay where they are.

const live = document.querySelector(".live");
let events = null;
let fetching = false;
let again = false;

/** A page that nobody sees rests: a browser opens only a few connections to one server. */
function listen() {
  if (events || document.hidden) return;
  const source = new EventSource("/events");
  events = source;
  let shown = null;
  source.onmessage = (event) => {
    say("live", false);
    if (event.lastEventId !== shown) {
      shown = event.lastEventId;
      refresh();
    }
  };
  source.onerror = () => {
    say("no connection to offsetkeeper", true);
    if (source.readyState === EventSource.CLOSED) {
      rest();
      setTimeout(listen, 5000);
    }
  };
}

function rest() {
  events?.close();
  events = null;
}

function say(text, gone) {
  live.textContent = text;
  live.classList.toggle("gone", gone);
}

async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  again = false;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = fresh.title;
    for (const place of ["#sources", "#pulse", "main"]) {
      morph(document.querySelector(place), fresh.querySelector(place));
    }
  } catch {
    say("no connection to offsetkeeper", true);
  } finally {
    fetching = false;
    if (again) refresh();
  }
}

/** Make `old` like `fresh`, in place. What is marked data-still is left alone. */
function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.hasAttribute("data-still") && fresh.hasAttribute("data-still")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.localName === "details")) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map([...old.children].map((child) => [key(child), child]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const name = key(wanted);
    const same = name ? keyed.get(name) : at && at.nodeName === wanted.nodeName && !key(at) ? at : null;
    if (!same) {
      old.insertBefore(document.adoptNode(wanted), at);
      continue;
    }
    if (same !== at) old.insertBefore(same, at);
    morph(same, wanted);
    at = same.nextSibling;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || null : null;
}

// --- Changes: a preview first, then that very plan ---

const HINTS = {
  offset: ["Offset", "42"],
  time: ["Time", "2026-01-31T12:00:00+00:00"],
  shift: ["Offsets, negative to go back", "-100"],
  rewind: ["Version", "1207"],
};

function changes(form) {
  const preview = form.parentElement.querySelector(".preview");
  const { what, value } = form.elements;
  what.addEventListener("change", () => {
    const hint = HINTS[what.value];
    form.querySelector(".value").hidden = !hint;
    if (hint) {
      form.querySelector(".value").firstChild.data = `${hint[0]} `;
      value.placeholder = hint[1];
    }
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const [action, body] = asked(form);
      show(form, preview, await post(form, action, { ...body, fence: form.elements.fence.checked }));
    } catch (error) {
      preview.replaceChildren(element("p", error.message, "notice bad"));
    }
  });
}

function asked(form) {
  const what = form.elements.what.value;
  const value = form.elements.value.value.trim();
  const number = value === "" ? null : Number(value); // what is no number becomes null too, and is refused
  const topic = form.elements.topics.value;
  if (what === "undo") return ["undo", topic ? { topics: [topic] } : {}];
  if (what === "rewind") return ["rewind", { version: number, ...(topic && { topics: [topic] }) }];
  const where = topic ? { topics: [topic] } : { all_topics: true };
  if (what === "shift") return ["reset", { ...where, shift: number }];
  return ["reset", { ...where, to: what === "offset" ? number : what === "time" ? value : what }];
}

async function post(form, action, body) {
  const answer = await fetch(`/api/${action}/${encodeURIComponent(form.dataset.group)}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${form.elements.token.value}` },
    body: JSON.stringify(body),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function show(form, preview, plan) {
  const table = element("table");
  const columns = ["topic", "partition", "old", "new", "replayed", "skipped", "above_beginning", "retention_used"];
  const names = ["Topic", "Partition", "Old", "New", "Read again", "Skipped", "Above the beginning", "Retention"];
  const head = table.createTHead().insertRow();
  for (const [index, name] of names.entries()) head.append(element("th", name, index ? "n" : ""));
  const rows = table.createTBody();
  for (const step of plan.steps) {
    const row = rows.insertRow();
    for (const [index, name] of columns.entries()) {
      row.append(element("td", cell(name, step), index ? "n" : ""));
    }
  }
  const scroll = element("div", "", "scroll");
  scroll.append(table);
  const button = element("button", "Execute this", "do");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const done = await post(form, "execute", { digest: plan.digest, reason: form.elements.reason.value });
      const told = element("p", "Done. The history shows it, and undo takes it back.", "notice");
      preview.replaceChildren(told, ...noted(done));
    } catch (error) {
      preview.replaceChildren(element("p", error.message, "notice bad"));
    }
  });
  const title = element("p", `What would change, made for version ${plan.version}; digest ${plan.digest.slice(0, 12)}…`);
  preview.replaceChildren(title, scroll, ...noted(plan), button);
}

function noted(plan) {
  return plan.notes.map((note) => element("p", `Note: ${note}.`, "notice"));
}

function cell(name, step) {
  const value = step[name] ?? null; // a query's count has no retention
  if (value === null) return "–";
  if (name !== "retention_used") return value.toLocaleString("en");
  return `${step.estimated ? "~ " : ""}${Math.round(value * 100)} %`;
}

function element(name, text = "", classes = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

// --- The list of groups: what is typed narrows it at once; the address keeps it ---

function search(form) {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.search.addEventListener("input", () => {
    const wanted = new URL(location.href);
    const text = form.elements.search.value;
    if (text) wanted.searchParams.set("search", text);
    else wanted.searchParams.delete("search");
    history.replaceState(null, "", wanted);
    refresh();
  });
}

/** One tab stop for a long table: the arrow keys lead from one thing that unfolds to the next. */
document.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const place = event.target.closest?.(".rove");
  if (!step || !place) return;
  const stops = [...place.querySelectorAll("summary")];
  const next = stops[stops.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
});

document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
window.addEventListener("pagehide", rest);
window.addEventListener("pageshow", listen);
document.querySelectorAll("form.change").forEach(changes);
document.querySelectorAll("form.search").forEach(search);
listen();
