// Creates DOM elements. Uses text nodes only, never innerHTML, so texts from the OpenAPI document
// cannot inject HTML.

/**
 * Creates an element. Attributes named `on…` are event listeners. Children are elements, strings or
 * nested arrays.
 */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== ""));
  return node;
}

/** Converts text with `code` in backticks to strings and code elements. */
export function inlineCode(text = "") {
  return text
    .split("`")
    .map((part, index) => (index % 2 === 1 ? element("code", {}, part) : part));
}

/** Converts text to paragraph elements. Blank lines separate paragraphs. */
export function paragraphs(text = "") {
  const parts = text.split(/\n\s*\n/).filter((part) => part.trim() !== "");
  return parts.map((part) => element("p", {}, inlineCode(part)));
}

/**
 * Copies text to the clipboard. On plain HTTP, browsers have no clipboard API; there, the function
 * copies from a hidden text area.
 */
export async function copyToClipboard(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const textArea = element("textarea", { class: "offscreen", "aria-hidden": "true" });
  textArea.value = text;
  document.body.append(textArea);
  textArea.select();
  document.execCommand("copy");
  textArea.remove();
}
