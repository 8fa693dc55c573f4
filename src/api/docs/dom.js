// Elements are made here, and only here. Text stays text: nothing of the document is ever read as HTML.

/** An element with its attributes and children; a child is an element or text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== ""));
  return made;
}

/** Text in which `this` is code. */
export function inline(text = "") {
  return text
    .split("`")
    .map((part, at) => (at % 2 === 1 ? element("code", {}, part) : part));
}

/** Paragraphs of such text. */
export function prose(text = "") {
  const paragraphs = text.split(/\n\s*\n/).filter((part) => part.trim() !== "");
  return paragraphs.map((part) => element("p", {}, inline(part)));
}

/** Copies, also where the browser has no clipboard to give (plain HTTP from another machine). */
export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const holder = element("textarea", { class: "away", "aria-hidden": "true" });
  holder.value = text;
  document.body.append(holder);
  holder.select();
  document.execCommand("copy");
  holder.remove();
}
