// The form that sends a request to an endpoint and shows the response.

import { copyToClipboard, element } from "./dom.js";
import { buildRequest, curlCommand, schemesToSend, sendRequest } from "./request.js";
import { exampleValue, resolve } from "./schema.js";

/**
 * Base URL of the API. The URL is relative to the URL of this page. Therefore the URL is also
 * correct behind a proxy that adds a path prefix.
 */
const BASE = new URL(".", location.href);

/**
 * Creates the form for one endpoint. `credentials` is the return value of `addCredentialFields` in
 * docs.js.
 */
export function tryForm(openapi, { method, path, operation }, credentials) {
  const id = (name) => `${operation.operationId}-${name}`;
  const parameters = (operation.parameters ?? []).map((parameter) => resolve(openapi, parameter));
  const fields = parameters.map((parameter) => parameterField(parameter, id(parameter.name)));
  const bodySchema = operation.requestBody?.content["application/json"]?.schema;
  const body = bodySchema && bodyField(openapi, bodySchema, id("body"));

  const currentRequest = () => {
    const schemes = schemesToSend(operation, credentials);
    return buildRequest({
      base: BASE,
      method,
      path,
      parameters: fields.map(({ parameter, input }) => ({
        name: parameter.name,
        location: parameter.in,
        value: input.value,
      })),
      headers: schemes.map((name) => [credentials.headers.get(name), credentials.values.get(name)]),
      body: body?.input.value,
    });
  };

  const curlText = element("code");
  const credentialsUsed = element("p", { class: "credentials-used" });
  const refresh = () => {
    const schemes = schemesToSend(operation, credentials);
    credentialsUsed.textContent = schemes.length
      ? `Credentials sent: ${schemes.join(", ")}.`
      : "No credentials sent. Enter them at the top of the page.";
    curlText.textContent = curlCommand(currentRequest(), credentials.secretHeaders);
  };
  credentials.onChange(refresh);

  const result = element("div", { class: "result", "aria-live": "polite" });
  const button = element("button", { class: "send" }, "Send");
  const form = element(
    "form",
    { class: "try-form", autocomplete: "off", oninput: refresh },
    element("h4", {}, "Try it"),
    element("div", { class: "parameters" }, fields.map((field) => field.row)),
    body?.row,
    credentialsUsed,
    element("div", { class: "buttons" }, button, element("span", { class: "hint" }, body ? "or Ctrl+Enter" : "")),
    result,
    element(
      "div",
      { class: "code-block" },
      element("pre", { tabindex: "0", "aria-label": "The request as a curl command" }, curlText),
      copyButton(() => curlCommand(currentRequest())),
    ),
  );
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  let requestInFlight;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (requestInFlight) {
      requestInFlight.abort();
      return;
    }
    requestInFlight = new AbortController();
    button.textContent = "Cancel";
    try {
      result.replaceChildren(...resultView(await sendRequest(currentRequest(), requestInFlight.signal)));
    } catch (error) {
      const message = error.name === "AbortError" ? "Request canceled." : `Request failed: ${error.message}`;
      result.replaceChildren(element("p", { class: "error-message" }, message));
    }
    requestInFlight = undefined;
    button.textContent = "Send";
  });
  refresh();
  return form;
}

function parameterField(parameter, id) {
  const { type, default: defaultValue } = parameter.schema ?? {};
  const isRepeatable = [type].flat().includes("array");
  const input = element(isRepeatable ? "textarea" : "input", {
    id,
    required: parameter.required,
    rows: isRepeatable ? "1" : undefined,
    inputmode: type === "integer" ? "numeric" : undefined,
    placeholder: isRepeatable ? "one per line" : defaultValue,
    spellcheck: "false",
  });
  if (parameter.required) input.value = parameter.example ?? parameter.schema?.example ?? "";
  const row = element("div", { class: "field" }, element("label", { for: id }, parameter.name), input);
  return { parameter, input, row };
}

function bodyField(openapi, schema, id) {
  const text = JSON.stringify(exampleValue(openapi, schema), undefined, 2);
  const input = element("textarea", { id, spellcheck: "false", rows: Math.min(text.split("\n").length, 16) });
  input.value = text;
  const jsonError = element("span", { class: "json-error", "aria-live": "polite" });
  input.addEventListener("input", () => {
    try {
      JSON.parse(input.value);
      jsonError.textContent = "";
    } catch {
      jsonError.textContent = "is not valid JSON; it is sent unchanged";
    }
  });
  const row = element("div", { class: "field" }, element("label", { for: id }, "Body ", jsonError), input);
  return { input, row };
}

function resultView({ status, statusText, durationMs, headers, body }) {
  const statusLine = element(
    "p",
    { class: "result-status" },
    element("span", { class: `status status-${String(status)[0]}xx` }, `${status} ${statusText}`.trim()),
    element("span", { class: "duration" }, `${durationMs} ms`),
  );
  const headerList = headers.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const bodyView = body === "" ? element("p", { class: "hint" }, "No body.") : responseBody(body);
  return [statusLine, element("dl", { class: "headers" }, headerList), bodyView];
}

function responseBody(body) {
  const text = element("pre", { class: "body", tabindex: "0", "aria-label": "Response body" });
  text.textContent = body;
  return element("div", { class: "code-block" }, text, copyButton(() => body));
}

function copyButton(getText) {
  const button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copyToClipboard(getText());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy failed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
