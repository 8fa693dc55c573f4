// Resolves references to JSON schemas, creates example values from schemas, and renders schemas.

import { element, inlineCode } from "./dom.js";

/** Returns the object that a `$ref` refers to. Returns other objects unchanged. */
export function resolve(openapi, object) {
  let resolved = object;
  while (resolved?.$ref) {
    const keys = resolved.$ref.slice(2).split("/");
    resolved = keys.reduce((value, key) => value?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], openapi);
  }
  return resolved ?? {};
}

/** Resolves a reference to a schema, and merges the `allOf` parts of the schema into one schema. */
function flatten(openapi, schemaOrRef) {
  const schema = resolve(openapi, schemaOrRef);
  if (!schema.allOf) return schema;
  const merged = { ...schema, type: "object", properties: {}, required: [] };
  delete merged.allOf;
  for (const part of [...schema.allOf].reverse()) {
    const { properties = {}, required = [] } = flatten(openapi, part);
    Object.assign(merged.properties, properties);
    merged.required.push(...required);
  }
  return merged;
}

function types(schema) {
  return [schema.type ?? []].flat();
}

/** Returns an example value for the schema. */
export function exampleValue(openapi, schemaOrRef) {
  const schema = flatten(openapi, schemaOrRef);
  for (const value of [schema.example, schema.examples?.[0], schema.default, schema.const, schema.enum?.[0]]) {
    if (value !== undefined) return value;
  }
  const alternatives = schema.oneOf ?? schema.anyOf;
  if (alternatives) return exampleValue(openapi, alternatives[0]);
  switch (types(schema)[0]) {
    case "object": {
      const entries = Object.entries(schema.properties ?? {});
      return Object.fromEntries(entries.map(([name, property]) => [name, exampleValue(openapi, property)]));
    }
    case "array":
      return [exampleValue(openapi, schema.items ?? {})];
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

/** Returns the readable type name, such as "string or null" or "array of string". */
export function typeName(openapi, schemaOrRef) {
  const schema = flatten(openapi, schemaOrRef);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.oneOf ?? schema.anyOf) return "one of";
  const name = (type) => {
    if (type === "array") return `array of ${typeName(openapi, schema.items ?? {})}`;
    const valueSchema = schema.additionalProperties;
    if (type === "object" && valueSchema?.type) return `map of string to ${typeName(openapi, valueSchema)}`;
    return type === "string" && schema.format ? schema.format : type;
  };
  return types(schema).map(name).join(" or ") || "any";
}

/** Returns the length limits, the range and the default value of a schema as text. */
export function constraints(schema) {
  const constraint = (keyword, label) => (schema[keyword] === undefined ? [] : [`${label} ${schema[keyword]}`]);
  return [
    ...(schema.minLength === 1 ? ["not empty"] : constraint("minLength", "min length")),
    ...constraint("maxLength", "max length"),
    ...constraint("maxItems", "max items"),
    ...constraint("minimum", "min"),
    ...(schema.maximum < Number.MAX_SAFE_INTEGER ? constraint("maximum", "max") : []),
    ...constraint("default", "default"),
  ].join(", ");
}

/** Renders a schema as a nested list of its fields. */
export function schemaView(openapi, schemaOrRef) {
  const schema = flatten(openapi, schemaOrRef);
  const alternatives = schema.oneOf ?? schema.anyOf;
  if (alternatives) {
    const items = alternatives.map((alternative) => element("li", {}, schemaView(openapi, alternative)));
    return element("ul", { class: "alternatives" }, items);
  }
  if (types(schema).includes("array")) {
    const items = flatten(openapi, schema.items ?? {});
    if (items.properties || items.oneOf) {
      return element("div", {}, element("span", { class: "type" }, "array of"), schemaView(openapi, items));
    }
  }
  if (!schema.properties) {
    return element("span", { class: "type" }, typeName(openapi, schema));
  }
  const required = new Set(schema.required);
  const fields = Object.entries(schema.properties).map(([name, property]) =>
    fieldView(openapi, name, property, required.has(name)),
  );
  return element("ul", { class: "schema" }, fields);
}

function fieldView(openapi, name, schemaOrRef, isRequired) {
  const schema = flatten(openapi, schemaOrRef);
  const items = flatten(openapi, schema.items ?? {});
  const hasNestedFields = schema.properties || schema.oneOf || items.properties || items.oneOf;
  const type = schema.properties ? "object" : hasNestedFields && schema.items ? "array" : typeName(openapi, schema);
  const constraintText = constraints(schema);
  return element(
    "li",
    {},
    element("code", { class: "name" }, name),
    element("span", { class: "type" }, type),
    isRequired ? element("span", { class: "required" }, "required") : "",
    constraintText ? element("span", { class: "constraints" }, constraintText) : "",
    schema.description ? element("span", { class: "description" }, inlineCode(schema.description)) : "",
    hasNestedFields ? schemaView(openapi, schema) : "",
  );
}
