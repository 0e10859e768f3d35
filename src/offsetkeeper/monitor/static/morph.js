// Changes a page in place, so that focus, selection, scrolling and opened details stay where they are.

/** Make `old` like `fresh`, in place. What is marked data-still is left alone. */
export function morph(old, fresh) {
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
