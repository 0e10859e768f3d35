// Changes of a group: a preview first, then that very plan.

const HINTS = {
  offset: ["Offset", "42"],
  time: ["Time", "2026-01-31T12:00:00+00:00"],
  shift: ["Offsets, negative to go back", "-100"],
  rewind: ["Version", "1207"],
};

export function changes(form) {
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
      const { fence, clip } = form.elements;
      show(form, preview, await post(form, action, { ...body, fence: fence.checked, clip: clip.checked }));
    } catch (error) {
      preview.replaceChildren(element("p", error.message, "notice bad"));
    }
  });
}

function asked(form) {
  const what = form.elements.what.value;
  const value = form.elements.value.value.trim();
  const number = value === "" ? null : Number(value); // NaN becomes null in JSON too, and is refused
  if (what in HINTS && Math.abs(number) > Number.MAX_SAFE_INTEGER) {
    throw new Error(`A browser has no exact number for ${value}: use the command offsetkeeper ${what === "rewind" ? what : "reset"}`);
  }
  const topic = form.elements.topics.value;
  // Whoever undoes an undo here reads so in the preview, before it is done.
  if (what === "undo") return ["undo", { again: true, ...(topic && { topics: [topic] }) }];
  if (what === "rewind") return ["rewind", { version: number, ...(topic && { topics: [topic] }) }];
  const where = topic ? { topics: [topic] } : { all_topics: true };
  if (what === "shift") return ["reset", { ...where, shift: number }];
  return ["reset", { ...where, to: what === "offset" ? number : what === "time" ? value : what }];
}

async function post(form, action, body) {
  const answer = await fetch(new URL(`../api/${action}/${form.dataset.path}`, import.meta.url), {
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
  const columns = ["topic", "partition", "old", "new", "replayed", "skipped", "lost", "above_beginning", "retention_used"];
  const names = ["Topic", "Partition", "Old", "New", "Read again", "Skipped", "Lost", "Above the beginning", "Retention"];
  const head = table.createTHead().insertRow();
  for (const [index, name] of names.entries()) head.append(element("th", name, index ? "n" : ""));
  const rows = table.createTBody();
  for (const step of plan.steps) {
    const row = rows.insertRow();
    for (const [index, name] of columns.entries()) {
      const made = element("td", cell(name, step), index ? "n" : "");
      made.dataset.label = names[index];
      row.append(made);
    }
  }
  const scroll = element("div", "", "scroll");
  scroll.append(table);
  const button = element("button", "Execute this", "do");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const done = await post(form, "execute", { digest: plan.digest, reason: form.elements.reason.value });
      preview.replaceChildren(element("p", `Done. The history shows it. ${wayBack(plan)}`, "notice"), ...noted(done));
    } catch (error) {
      preview.replaceChildren(element("p", error.message, "notice bad"));
    }
  });
  const title = element("p", `What would change, made for version ${plan.version}; digest ${plan.digest.slice(0, 12)}…`);
  preview.replaceChildren(title, scroll, ...noted(plan), button);
}

function wayBack(plan) {
  const placed = plan.steps.some((step) => step.old === null);
  return placed ? "Undo takes no first position out: offsetkeeper forget does." : "Undo takes it back.";
}

function noted(plan) {
  return plan.notes.map((note) => element("p", `Note: ${note}.`, "notice"));
}

function cell(name, step) {
  const value = step[name] ?? null; // a query's count has no retention
  if (value === null) return "–";
  const rounded = typeof value === "number" && Math.abs(value) > Number.MAX_SAFE_INTEGER;
  if (name !== "retention_used") return `${rounded ? "~ " : ""}${value.toLocaleString("en")}`;
  return `${step.estimated ? "~ " : ""}${Math.round(value * 100)} %`;
}

function element(name, text = "", classes = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (classes) made.className = classes;
  return made;
}
