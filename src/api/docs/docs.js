// Shows the OpenAPI document that is served beside this page, and lets every endpoint be tried.

import { element, inline, prose } from "./dom.js";
import { limits, resolve, shape, typeOf } from "./schema.js";
import { tryForm } from "./try.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
/** The order in which people think of them. */
const SCHEMES = ["client-id", "psk", "org-id", "account", "identity"];
/** Schemes whose values are not for every eye. */
const SECRET = new Set(["psk", "identity"]);

const place = (id) => document.getElementById(id);

async function start() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`openapi.json is answered with ${answer.status}`);
  const whole = await answer.json();
  document.title = `${whole.info.title}: the REST interface`;
  place("title").textContent = whole.info.title;
  place("version").textContent = whole.info.version;
  place("about").append(...prose(whole.info.description));
  const credentials = credentialFields(whole);
  const groups = grouped(whole);
  place("operations").replaceChildren(...groups.map((group) => section(whole, group, credentials)));
  place("contents").append(...groups.map(contentsOf));
  openNamed();
  addEventListener("hashchange", openNamed);
}

/** Operations by tag, in the document's order of tags. */
function grouped(whole) {
  const all = Object.entries(whole.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, operation: item[method] })),
  );
  return whole.tags.map((tag) => ({ tag, members: all.filter(({ operation }) => operation.tags.includes(tag.name)) }));
}

/** What is typed is kept in this map and nowhere else. */
function credentialFields(whole) {
  const schemes = Object.entries(whole.components.securitySchemes);
  schemes.sort(([a], [b]) => SCHEMES.indexOf(a) - SCHEMES.indexOf(b));
  place("credential-fields").addEventListener("submit", (event) => event.preventDefault());
  const given = new Map();
  const listeners = [];
  for (const [name, scheme] of schemes) {
    const id = `credential-${name}`;
    const input = element("input", {
      id,
      type: SECRET.has(name) ? "password" : "text",
      autocomplete: SECRET.has(name) ? "new-password" : "off",
      spellcheck: "false",
      "aria-describedby": `${id}-said`,
      oninput: (event) => {
        given.set(name, event.target.value.trim());
        listeners.forEach((listener) => listener());
      },
    });
    place("credential-fields").append(
      element(
        "div",
        { class: "field" },
        element("label", { for: id }, name, element("code", {}, scheme.name)),
        input,
        element("p", { id: `${id}-said`, class: "said" }, inline(scheme.description)),
      ),
    );
  }
  place("credentials").hidden = false;
  const headers = new Map(schemes.map(([name, scheme]) => [name, scheme.name]));
  return {
    given,
    headers,
    secretHeaders: new Set([...SECRET].map((name) => headers.get(name))),
    onChange: (listener) => listeners.push(listener),
  };
}

function contentsOf({ tag, members }) {
  const links = members.map(({ path, method, operation }) =>
    element(
      "li",
      {},
      element(
        "a",
        { href: `#${operation.operationId}`, title: operation.summary },
        element("span", { class: `method ${method}` }, method),
        element("span", { class: "path" }, broken(path)),
      ),
    ),
  );
  return element("div", {}, element("h2", {}, tag.name), element("ul", {}, links));
}

/** Long paths may break after a slash. */
function broken(path) {
  return path.split(/(?<=\/)/).flatMap((part) => [part, element("wbr")]);
}

function section(whole, { tag, members }, credentials) {
  const id = `tag-${tag.name.replaceAll(" ", "-")}`;
  return element(
    "section",
    { "aria-labelledby": id, class: "group" },
    element("h2", { id }, tag.name),
    prose(tag.description),
    members.map((member) => described(whole, member, credentials)),
  );
}

/** One operation, folded. What is inside is made when it is first opened. */
function described(whole, member, credentials) {
  const { path, method, operation } = member;
  const fold = element(
    "details",
    { id: operation.operationId, class: "card operation" },
    element(
      "summary",
      {},
      element("span", { class: `method ${method}` }, method),
      element("code", { class: "path" }, broken(path)),
      element("span", { class: "short" }, operation.summary),
    ),
  );
  const fill = () =>
    fold.append(
      element(
        "div",
        { class: "inside" },
        element("div", { class: "facts" }, facts(whole, operation)),
        tryForm(whole, member, credentials),
      ),
    );
  fold.addEventListener("toggle", fill, { once: true });
  return fold;
}

function facts(whole, operation) {
  const parameters = (operation.parameters ?? []).map((part) => resolve(whole, part));
  const body = operation.requestBody?.content["application/json"]?.schema;
  return [
    ...prose(operation.description),
    element("p", { class: "said" }, "Operation ", element("code", {}, operation.operationId), ". ", ways(operation)),
    ...(parameters.length ? [element("h4", {}, "Parameters"), parameterList(whole, parameters)] : []),
    ...(body ? [element("h4", {}, "Body"), shape(whole, body)] : []),
    element("h4", {}, "Answers"),
    ...Object.entries(operation.responses).map(([status, part]) => response(whole, status, resolve(whole, part))),
  ];
}

/** Who may call, in words. */
function ways(operation) {
  const inOrder = (way) => SCHEMES.filter((name) => name in way);
  const each = (operation.security ?? []).map((way) => inOrder(way).join(" + "));
  return each.length ? `Credentials: ${each.join(", or ")}.` : "";
}

function parameterList(whole, parameters) {
  const rows = parameters.map(({ name, in: where, required, schema = {}, description }) =>
    element(
      "li",
      {},
      element("code", { class: "name" }, name),
      element("span", { class: "type" }, `${typeOf(whole, schema)} in the ${where}`),
      required ? element("span", { class: "required" }, "required") : "",
      element("span", { class: "limits" }, limits(schema)),
      element("span", { class: "said" }, inline(description)),
    ),
  );
  return element("ul", { class: "shape" }, rows);
}

function response(whole, status, { description, content = {}, headers = {} }) {
  const kinds = Object.entries(content);
  const head = [
    element("span", { class: `status s${status[0]}` }, status),
    element("span", { class: "said" }, inline(description)),
  ];
  if (kinds.length === 0) return element("div", { class: "response" }, element("p", {}, head));
  const named = Object.entries(headers).map(([name, header]) =>
    element("p", { class: "said" }, element("code", {}, name), " ", inline(header.description)),
  );
  const bodies = kinds.map(([kind, { schema }]) =>
    element("div", {}, element("p", { class: "kind" }, kind), shape(whole, schema ?? {})),
  );
  return element("details", { class: "response" }, element("summary", {}, head), named, bodies);
}

/** The operation that the address names is opened. */
function openNamed() {
  const named = place(decodeURIComponent(location.hash.slice(1)));
  if (!(named instanceof HTMLDetailsElement)) return;
  named.open = true;
  named.scrollIntoView();
  named.querySelector("summary").focus({ preventScroll: true });
}

start().catch((error) => {
  place("operations").replaceChildren(
    element("p", { class: "problem" }, `The document could not be shown: ${error.message}`),
  );
});
