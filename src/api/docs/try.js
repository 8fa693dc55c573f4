// The form with which an endpoint is tried.

import { copy, element } from "./dom.js";
import { build, chosen, curl, send } from "./request.js";
import { example, resolve } from "./schema.js";

/** Where the interface is: beside this page, whatever stands in front of it. */
const BASE = new URL(".", location.href);

/** `credentials`: what was typed, by scheme, the headers they go in, and who wants to know of changes. */
export function tryForm(whole, { method, path, operation }, credentials) {
  const id = (name) => `${operation.operationId}-${name}`;
  const parameters = (operation.parameters ?? []).map((part) => resolve(whole, part));
  const fields = parameters.map((parameter) => parameterField(parameter, id(parameter.name)));
  const json = operation.requestBody?.content["application/json"]?.schema;
  const body = json && bodyField(whole, json, id("body"));

  const request = () => {
    const names = chosen(operation, credentials);
    return build({
      base: BASE,
      method,
      path,
      parameters: fields.map(({ parameter, input }) => ({
        name: parameter.name,
        place: parameter.in,
        value: input.value,
      })),
      headers: names.map((name) => [credentials.headers.get(name), credentials.given.get(name)]),
      body: body?.input.value,
    });
  };

  const command = element("code");
  const credited = element("p", { class: "sends" });
  const refresh = () => {
    const names = chosen(operation, credentials);
    credited.textContent = names.length
      ? `Sent with ${names.join(", ")}.`
      : "Sent without credentials: fill them in above.";
    command.textContent = curl(request(), credentials.secretHeaders);
  };
  credentials.onChange(refresh);

  const answer = element("div", { class: "answer", "aria-live": "polite" });
  const button = element("button", { class: "send" }, "Send");
  const form = element(
    "form",
    { class: "try", autocomplete: "off", oninput: refresh },
    element("h4", {}, "Try it"),
    element("div", { class: "parameters" }, fields.map((field) => field.row)),
    body?.row,
    credited,
    element("div", { class: "buttons" }, button, element("span", { class: "hint" }, body ? "or Ctrl+Enter" : "")),
    answer,
    element(
      "div",
      { class: "command" },
      element("pre", { tabindex: "0", "aria-label": "The request as a curl command" }, command),
      copyButton(() => curl(request())),
    ),
  );
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  let underWay;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (underWay) {
      underWay.abort();
      return;
    }
    underWay = new AbortController();
    button.textContent = "Stop";
    try {
      answer.replaceChildren(...answered(await send(request(), underWay.signal)));
    } catch (error) {
      const why = error.name === "AbortError" ? "Stopped." : `No answer: ${error.message}`;
      answer.replaceChildren(element("p", { class: "problem" }, why));
    }
    underWay = undefined;
    button.textContent = "Send";
  });
  refresh();
  return form;
}

function parameterField(parameter, id) {
  const { type, default: fallback } = parameter.schema ?? {};
  const isRepeated = [type].flat().includes("array");
  const input = element(isRepeated ? "textarea" : "input", {
    id,
    required: parameter.required,
    rows: isRepeated ? "1" : undefined,
    inputmode: type === "integer" ? "numeric" : undefined,
    placeholder: isRepeated ? "one a line" : fallback,
    spellcheck: "false",
  });
  if (parameter.required) input.value = parameter.example ?? parameter.schema?.example ?? "";
  const row = element("div", { class: "field" }, element("label", { for: id }, parameter.name), input);
  return { parameter, input, row };
}

function bodyField(whole, schema, id) {
  const text = JSON.stringify(example(whole, schema), undefined, 2);
  const input = element("textarea", { id, spellcheck: "false", rows: Math.min(text.split("\n").length, 16) });
  input.value = text;
  const remark = element("span", { class: "remark", "aria-live": "polite" });
  input.addEventListener("input", () => {
    try {
      JSON.parse(input.value);
      remark.textContent = "";
    } catch {
      remark.textContent = "is no JSON (and is sent as it is)";
    }
  });
  const row = element("div", { class: "field" }, element("label", { for: id }, "Body ", remark), input);
  return { input, row };
}

function answered({ status, reason, took, headers, body }) {
  const head = element(
    "p",
    { class: "outcome" },
    element("span", { class: `status s${String(status)[0]}` }, `${status} ${reason}`.trim()),
    element("span", { class: "took" }, `${took} ms`),
  );
  const noted = headers.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const text = body === "" ? element("p", { class: "hint" }, "No body.") : scrolled(body);
  return [head, element("dl", { class: "headers" }, noted), text];
}

function scrolled(body) {
  const text = element("pre", { class: "body", tabindex: "0", "aria-label": "The answer's body" });
  text.textContent = body;
  return element("div", { class: "command" }, text, copyButton(() => body));
}

function copyButton(text) {
  const button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copy(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
