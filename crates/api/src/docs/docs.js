// Renders the OpenAPI document `openapi.json`. Each endpoint has a form that sends a request.

import { element, inlineCode, paragraphs } from "./dom.js";
import { constraints, resolve, schemaView, typeName } from "./schema.js";
import { tryForm } from "./try.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
/** Names of the security schemes, in display order. */
const SCHEMES = ["client-id", "psk", "org-id", "account", "identity"];
/** Names of the security schemes whose input fields are password fields. */
const SECRET_SCHEMES = new Set(["psk", "identity"]);

const byId = (id) => document.getElementById(id);

async function start() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: status ${response.status}`);
  const openapi = await response.json();
  document.title = `${openapi.info.title} REST API`;
  byId("title").textContent = openapi.info.title;
  byId("version").textContent = openapi.info.version;
  byId("api-description").append(...paragraphs(openapi.info.description));
  const credentials = addCredentialFields(openapi);
  const groups = operationsByTag(openapi);
  byId("operations").replaceChildren(...groups.map((group) => groupSection(openapi, group, credentials)));
  byId("contents").append(...groups.map(contentsEntry));
  openLinkedOperation();
  addEventListener("hashchange", openLinkedOperation);
}

/** Groups operations by tag. The groups have the order of the tags in the document. */
function operationsByTag(openapi) {
  const operations = Object.entries(openapi.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, operation: item[method] })),
  );
  return openapi.tags.map((tag) => ({
    tag,
    operations: operations.filter(({ operation }) => operation.tags.includes(tag.name)),
  }));
}

/**
 * Adds an input field for each security scheme. The entered values are stored only in the returned
 * map `values`.
 */
function addCredentialFields(openapi) {
  const schemes = Object.entries(openapi.components.securitySchemes);
  schemes.sort(([a], [b]) => SCHEMES.indexOf(a) - SCHEMES.indexOf(b));
  byId("credential-fields").addEventListener("submit", (event) => event.preventDefault());
  const values = new Map();
  const listeners = [];
  for (const [name, scheme] of schemes) {
    const id = `credential-${name}`;
    const input = element("input", {
      id,
      type: SECRET_SCHEMES.has(name) ? "password" : "text",
      autocomplete: SECRET_SCHEMES.has(name) ? "new-password" : "off",
      spellcheck: "false",
      "aria-describedby": `${id}-description`,
      oninput: (event) => {
        values.set(name, event.target.value.trim());
        listeners.forEach((listener) => listener());
      },
    });
    byId("credential-fields").append(
      element(
        "div",
        { class: "field" },
        element("label", { for: id }, name, element("code", {}, scheme.name)),
        input,
        element("p", { id: `${id}-description`, class: "description" }, inlineCode(scheme.description)),
      ),
    );
  }
  byId("credentials").hidden = false;
  const headers = new Map(schemes.map(([name, scheme]) => [name, scheme.name]));
  return {
    values,
    headers,
    secretHeaders: new Set([...SECRET_SCHEMES].map((name) => headers.get(name))),
    onChange: (listener) => listeners.push(listener),
  };
}

function contentsEntry({ tag, operations }) {
  const links = operations.map(({ path, method, operation }) =>
    element(
      "li",
      {},
      element(
        "a",
        { href: `#${operation.operationId}`, title: operation.summary },
        element("span", { class: `method ${method}` }, method),
        element("span", { class: "path" }, breakablePath(path)),
      ),
    ),
  );
  return element("div", {}, element("h2", {}, tag.name), element("ul", {}, links));
}

/** Returns the path with an optional line break after each slash. */
function breakablePath(path) {
  return path.split(/(?<=\/)/).flatMap((part) => [part, element("wbr")]);
}

function groupSection(openapi, { tag, operations }, credentials) {
  const id = `tag-${tag.name.replaceAll(" ", "-")}`;
  return element(
    "section",
    { "aria-labelledby": id, class: "group" },
    element("h2", { id }, tag.name),
    paragraphs(tag.description),
    operations.map((operation) => operationCard(openapi, operation, credentials)),
  );
}

/**
 * Creates a collapsed card for an operation. The content of the card is created when the card is
 * opened for the first time.
 */
function operationCard(openapi, endpoint, credentials) {
  const { path, method, operation } = endpoint;
  const card = element(
    "details",
    { id: operation.operationId, class: "card operation" },
    element(
      "summary",
      {},
      element("span", { class: `method ${method}` }, method),
      element("code", { class: "path" }, breakablePath(path)),
      element("span", { class: "summary-text" }, operation.summary),
    ),
  );
  const addContent = () =>
    card.append(
      element(
        "div",
        { class: "operation-content" },
        element("div", { class: "operation-docs" }, operationDocs(openapi, operation)),
        tryForm(openapi, endpoint, credentials),
      ),
    );
  card.addEventListener("toggle", addContent, { once: true });
  return card;
}

function operationDocs(openapi, operation) {
  const parameters = (operation.parameters ?? []).map((parameter) => resolve(openapi, parameter));
  const bodySchema = operation.requestBody?.content["application/json"]?.schema;
  return [
    ...paragraphs(operation.description),
    element(
      "p",
      { class: "description" },
      "Operation ",
      element("code", {}, operation.operationId),
      ". ",
      credentialsText(operation),
    ),
    ...(parameters.length ? [element("h4", {}, "Parameters"), parameterList(openapi, parameters)] : []),
    ...(bodySchema ? [element("h4", {}, "Body"), schemaView(openapi, bodySchema)] : []),
    element("h4", {}, "Responses"),
    ...Object.entries(operation.responses).map(([status, response]) =>
      responseView(openapi, status, resolve(openapi, response)),
    ),
  ];
}

/** Returns a sentence that lists the accepted sets of credentials. */
function credentialsText(operation) {
  const inDisplayOrder = (requirement) => SCHEMES.filter((name) => name in requirement);
  const sets = (operation.security ?? []).map((requirement) => inDisplayOrder(requirement).join(" + "));
  return sets.length ? `Credentials: ${sets.join(", or ")}.` : "";
}

function parameterList(openapi, parameters) {
  const rows = parameters.map(({ name, in: location, required, schema = {}, description }) =>
    element(
      "li",
      {},
      element("code", { class: "name" }, name),
      element("span", { class: "type" }, `${typeName(openapi, schema)} in the ${location}`),
      required ? element("span", { class: "required" }, "required") : "",
      element("span", { class: "constraints" }, constraints(schema)),
      element("span", { class: "description" }, inlineCode(description)),
    ),
  );
  return element("ul", { class: "schema" }, rows);
}

function responseView(openapi, status, { description, content = {}, headers = {} }) {
  const mediaTypes = Object.entries(content);
  const title = [
    element("span", { class: `status status-${status[0]}xx` }, status),
    element("span", { class: "description" }, inlineCode(description)),
  ];
  if (mediaTypes.length === 0) return element("div", { class: "response" }, element("p", {}, title));
  const headerViews = Object.entries(headers).map(([name, header]) =>
    element("p", { class: "description" }, element("code", {}, name), " ", inlineCode(header.description)),
  );
  const bodyViews = mediaTypes.map(([mediaType, { schema }]) =>
    element("div", {}, element("p", { class: "media-type" }, mediaType), schemaView(openapi, schema ?? {})),
  );
  return element("details", { class: "response" }, element("summary", {}, title), headerViews, bodyViews);
}

/** Opens the operation whose id is in the URL fragment, and moves the focus to the operation. */
function openLinkedOperation() {
  const card = byId(decodeURIComponent(location.hash.slice(1)));
  if (!(card instanceof HTMLDetailsElement)) return;
  card.open = true;
  card.scrollIntoView();
  card.querySelector("summary").focus({ preventScroll: true });
}

start().catch((error) => {
  byId("operations").replaceChildren(
    element("p", { class: "error-message" }, `Failed to load the OpenAPI document: ${error.message}`),
  );
});
