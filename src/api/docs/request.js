// A request as it is sent and as a line for the shell, and its answer.

/** Headers worth seeing, of those that an answer has. */
const OF_NOTE = ["content-type", "content-length", "retry-after", "allow", "x-rh-insights-request-id"];
/** More than this is not shown: a browser would be busy with it for long. */
const SHOWN_MOST = 500_000;

/** The credentials that an operation is sent with: the first way in that is complete, or what there is. */
export function chosen(operation, { given, headers }) {
  const ways = (operation.security ?? []).map((way) => Object.keys(way));
  const complete = ways.find((way) => way.every((name) => given.get(name)));
  const names = new Set(complete ?? ways.flat());
  return [...headers.keys()].filter((name) => names.has(name) && given.get(name));
}

/** The request. `base` is where the interface is: beside this page, whatever stands in front of it. */
export function build({ base, method, path, parameters, headers, body }) {
  let filled = path;
  const query = new URLSearchParams();
  for (const { name, place, value } of parameters) {
    if (place === "path") filled = filled.replace(`{${name}}`, encodeURIComponent(value));
    // A parameter that may be repeated has its values in lines.
    else if (place === "query") {
      const given = value.split("\n").filter((line) => line !== "");
      given.forEach((line) => query.append(name, line));
    } else if (place === "header" && value !== "") headers = [...headers, [name, value]];
  }
  const url = new URL(filled.slice(1), base);
  url.search = query;
  if (body !== undefined) headers = [["content-type", "application/json"], ...headers];
  return { method: method.toUpperCase(), url: url.href, headers, body };
}

/** The same as a command. Values of `hidden` headers are not shown where people may look on. */
export function curl(request, hidden = new Set()) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const parts = [request.method === "GET" ? "curl -s" : `curl -s -X ${request.method}`];
  for (const [name, value] of request.headers) {
    parts.push(`-H ${quoted(`${name}: ${hidden.has(name) ? "…" : value}`)}`);
  }
  if (request.body !== undefined) parts.push(`--data-raw ${quoted(request.body)}`);
  parts.push(quoted(request.url));
  return parts.join(" \\\n  ");
}

/** Sends it; the answer with its time in milliseconds. */
export async function send(request, signal) {
  const started = performance.now();
  const { method, headers, body } = request;
  const answer = await fetch(request.url, { method, headers, body, signal, cache: "no-store" });
  const text = await answer.text();
  const took = Math.round(performance.now() - started);
  const noted = OF_NOTE.filter((name) => answer.headers.has(name));
  return {
    status: answer.status,
    reason: answer.statusText,
    took,
    headers: noted.map((name) => [name, answer.headers.get(name)]),
    body: shown(text),
  };
}

function shown(text) {
  if (text.length > SHOWN_MOST) {
    return `${text.slice(0, SHOWN_MOST)}\n… and ${text.length - SHOWN_MOST} characters more`;
  }
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indented(text);
}

/** JSON with line breaks. Its values stay as they came: reading them would round large numbers. */
export function indented(json) {
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      const isEmpty = next === "}" || next === "]";
      if (!isEmpty) depth += 1;
      out += isEmpty ? token : token + line();
    } else if (token === "}" || token === "]") {
      const wasEmpty = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      if (!wasEmpty) depth -= 1;
      out += wasEmpty ? token : line() + token;
    } else if (token === ",") out += token + line();
    else out += token === ":" ? ": " : token;
  });
  return out;
}
