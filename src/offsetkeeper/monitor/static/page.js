// Keeps an open page up to date: after each poll the server sends an event, and the page is fetched again and changed
// in place where it differs. The address has what the reader chooses, so the server makes that page too.

import { changes } from "./changes.js";
import { charts } from "./charts.js";
import { choices } from "./choices.js";
import { rows } from "./history.js";
import { morph } from "./morph.js";

const live = document.querySelector(".live");
let events = null;
let fetching = false;
let again = false;

/** A hidden page does not listen: a browser opens only a few connections to one server. */
function listen() {
  if (events || document.hidden) return;
  const source = new EventSource(new URL("../events", import.meta.url));
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
    prepare();
  } catch {
    say("no connection to offsetkeeper", true);
  } finally {
    fetching = false;
    if (again) refresh();
  }
}

function prepare() {
  charts();
  rows();
}

document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
window.addEventListener("pagehide", rest);
window.addEventListener("pageshow", listen);
document.querySelectorAll("form.change").forEach(changes);
choices(refresh);
prepare();
listen();
