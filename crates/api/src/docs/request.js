// Builds a request, sends the request, and renders the request as a curl command.

/** Response headers that the page shows. */
const SHOWN_HEADERS = ["content-type", "content-length", "retry-after", "allow", "x-rh-insights-request-id"];
/**
 * Maximum number of characters of a response body that the page shows. The page truncates longer
 * bodies, because longer bodies make the browser slow.
 */
const MAX_SHOWN_CHARACTERS = 500_000;

/**
 * Returns the names of the security schemes to send with the request. These are the schemes of the
 * first set of credentials for which all values were entered. If no set is complete, returns all
 * schemes for which a value was entered.
 */
export function schemesToSend(operation, { values, headers }) {
  const sets = (operation.security ?? []).map((requirement) => Object.keys(requirement));
  const completeSet = sets.find((names) => names.every((name) => values.get(name)));
  const names = new Set(completeSet ?? sets.flat());
  return [...headers.keys()].filter((name) => names.has(name) && values.get(name));
}

/**
 * Builds a request. The path is relative to `base`. Therefore the request also works behind a proxy
 * that adds a path prefix.
 */
export function buildRequest({ base, method, path, parameters, headers, body }) {
  let filledPath = path;
  const query = new URLSearchParams();
  for (const { name, location, value } of parameters) {
    if (location === "path") filledPath = filledPath.replace(`{${name}}`, encodeURIComponent(value));
    // The input field of a repeatable parameter contains one value per line.
    else if (location === "query") {
      const values = value.split("\n").filter((line) => line !== "");
      values.forEach((line) => query.append(name, line));
    } else if (location === "header" && value !== "") headers = [...headers, [name, value]];
  }
  const url = new URL(filledPath.slice(1), base);
  url.search = query;
  if (body !== undefined) headers = [["content-type", "application/json"], ...headers];
  return { method: method.toUpperCase(), url: url.href, headers, body };
}

/** Renders the request as a curl command. Replaces the values of `maskedHeaders` with an ellipsis. */
export function curlCommand(request, maskedHeaders = new Set()) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const parts = [request.method === "GET" ? "curl -s" : `curl -s -X ${request.method}`];
  for (const [name, value] of request.headers) {
    parts.push(`-H ${quote(`${name}: ${maskedHeaders.has(name) ? "…" : value}`)}`);
  }
  if (request.body !== undefined) parts.push(`--data-raw ${quote(request.body)}`);
  parts.push(quote(request.url));
  return parts.join(" \\\n  ");
}

/** Sends the request. Returns the response and the duration of the request in milliseconds. */
export async function sendRequest(request, signal) {
  const started = performance.now();
  const { method, headers, body } = request;
  const response = await fetch(request.url, { method, headers, body, signal, cache: "no-store" });
  const text = await response.text();
  const durationMs = Math.round(performance.now() - started);
  const headerNames = SHOWN_HEADERS.filter((name) => response.headers.has(name));
  return {
    status: response.status,
    statusText: response.statusText,
    durationMs,
    headers: headerNames.map((name) => [name, response.headers.get(name)]),
    body: formatBody(text),
  };
}

function formatBody(text) {
  if (text.length > MAX_SHOWN_CHARACTERS) {
    return `${text.slice(0, MAX_SHOWN_CHARACTERS)}\n… and ${text.length - MAX_SHOWN_CHARACTERS} more characters`;
  }
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indentJson(text);
}

/**
 * Adds line breaks and indentation to JSON text. The function does not use JSON.parse and
 * JSON.stringify, because they would round large numbers.
 */
export function indentJson(json) {
  let output = "";
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  const tokens = json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      const isEmpty = next === "}" || next === "]";
      if (!isEmpty) depth += 1;
      output += isEmpty ? token : token + newLine();
    } else if (token === "}" || token === "]") {
      const isEmpty = tokens[index - 1] === "{" || tokens[index - 1] === "[";
      if (!isEmpty) depth -= 1;
      output += isEmpty ? token : newLine() + token;
    } else if (token === ",") output += token + newLine();
    else output += token === ":" ? ": " : token;
  });
  return output;
}
