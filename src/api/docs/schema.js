// Reading schemas: what they refer to, what a value of theirs looks like, how to show them.

import { element, inline } from "./dom.js";

/** What a reference leads to. */
export function resolve(whole, part) {
  let found = part;
  while (found?.$ref) {
    const steps = found.$ref.slice(2).split("/");
    found = steps.reduce((at, step) => at?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], whole);
  }
  return found ?? {};
}

/** A schema without references at its top, and with what it is composed of put together. */
function plain(whole, part) {
  const schema = resolve(whole, part);
  if (!schema.allOf) return schema;
  const merged = { ...schema, type: "object", properties: {}, required: [] };
  delete merged.allOf;
  for (const piece of [...schema.allOf].reverse()) {
    const { properties = {}, required = [] } = plain(whole, piece);
    Object.assign(merged.properties, properties);
    merged.required.push(...required);
  }
  return merged;
}

function types(schema) {
  return [schema.type ?? []].flat();
}

/** A value that the schema would take, to start from. */
export function example(whole, part) {
  const schema = plain(whole, part);
  for (const given of [schema.example, schema.examples?.[0], schema.default, schema.const, schema.enum?.[0]]) {
    if (given !== undefined) return given;
  }
  const choice = schema.oneOf ?? schema.anyOf;
  if (choice) return example(whole, choice[0]);
  switch (types(schema)[0]) {
    case "object": {
      const entries = Object.entries(schema.properties ?? {});
      return Object.fromEntries(entries.map(([name, property]) => [name, example(whole, property)]));
    }
    case "array":
      return [example(whole, schema.items ?? {})];
    case "integer":
    case "number":
      return schema.minimum ?? 0;
    case "boolean":
      return false;
    case "string":
      return schema.format === "uuid" ? "00000000-0000-0000-0000-000000000000" : "";
    default:
      return null;
  }
}

/** The type in words: "string or null", "array of string". */
export function typeOf(whole, part) {
  const schema = plain(whole, part);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.oneOf ?? schema.anyOf) return "one of";
  const name = (type) => {
    if (type === "array") return `array of ${typeOf(whole, schema.items ?? {})}`;
    const values = schema.additionalProperties;
    if (type === "object" && values?.type) return `map of string to ${typeOf(whole, values)}`;
    return type === "string" && schema.format ? schema.format : type;
  };
  return types(schema).map(name).join(" or ") || "anything";
}

/** What a value must keep to, besides its type. */
export function limits(schema) {
  const of = (name, text) => (schema[name] === undefined ? [] : [`${text} ${schema[name]}`]);
  return [
    ...(schema.minLength === 1 ? ["not empty"] : of("minLength", "length from")),
    ...of("maxLength", "length to"),
    ...of("maxItems", "at most"),
    ...of("minimum", "from"),
    ...(schema.maximum < Number.MAX_SAFE_INTEGER ? of("maximum", "to") : []),
    ...of("default", "default"),
  ].join(", ");
}

/** The schema as a list of its fields, and theirs. */
export function shape(whole, part) {
  const schema = plain(whole, part);
  const choice = schema.oneOf ?? schema.anyOf;
  if (choice) {
    const ways = choice.map((way) => element("li", {}, shape(whole, way)));
    return element("ul", { class: "ways" }, ways);
  }
  if (types(schema).includes("array")) {
    const items = plain(whole, schema.items ?? {});
    if (items.properties || items.oneOf) {
      return element("div", {}, element("span", { class: "type" }, "array of"), shape(whole, items));
    }
  }
  if (!schema.properties) {
    return element("span", { class: "type" }, typeOf(whole, schema));
  }
  const required = new Set(schema.required);
  const fields = Object.entries(schema.properties).map(([name, property]) =>
    field(whole, name, property, required.has(name)),
  );
  return element("ul", { class: "shape" }, fields);
}

function field(whole, name, part, isRequired) {
  const schema = plain(whole, part);
  const items = plain(whole, schema.items ?? {});
  const hasInside = schema.properties || schema.oneOf || items.properties || items.oneOf;
  const type = schema.properties ? "object" : hasInside && schema.items ? "array" : typeOf(whole, schema);
  const bounds = limits(schema);
  return element(
    "li",
    {},
    element("code", { class: "name" }, name),
    element("span", { class: "type" }, type),
    isRequired ? element("span", { class: "required" }, "required") : "",
    bounds ? element("span", { class: "limits" }, bounds) : "",
    schema.description ? element("span", { class: "said" }, inline(schema.description)) : "",
    hasInside ? shape(whole, schema) : "",
  );
}
