// Creates DOM elements. Texts become text nodes and are never parsed as HTML. Therefore texts from
// the OpenAPI document cannot inject HTML.

/**
 * Creates an element. An attribute whose name starts with `on` is an event listener. Each child is
 * an element, a string, or an array of children.
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

/** Converts text to strings and code elements. Text between backticks becomes a code element. */
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
 * Copies text to the clipboard. Over plain HTTP, browsers do not provide the clipboard API. The
 * function then copies the text from a hidden text area.
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
