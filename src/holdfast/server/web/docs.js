// The reference of the HTTP API, built from /openapi.json. Text is added as nodes, never as HTML.

function node(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const nameOf = (reference) => reference.split("/").at(-1);

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return options.map(typeOf).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items) || "values"}`;
  return schema.format ? `${schema.type} (${schema.format})` : (schema.type ?? "any");
}

function table(heads, rows) {
  return node("table", {},
    node("thead", {}, node("tr", {}, ...heads.map((head) => node("th", {}, head)))),
    node("tbody", {}, ...rows.map((cells) => node("tr", {}, ...cells.map((cell) => node("td", {}, cell))))));
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  return table(["field", "type", "description"], Object.entries(schema.properties ?? {}).map(([name, property]) => [
    node("code", {}, required.has(name) ? name : `${name}?`), typeOf(property), property.description ?? "",
  ]));
}

function operation(method, path, details) {
  const parameters = (details.parameters ?? []).map((each) => [
    node("code", {}, each.required ? each.name : `${each.name}?`), each.in, typeOf(each.schema), each.description ?? "",
  ]);
  const body = Object.values(details.requestBody?.content ?? {})[0]?.schema;
  const responses = Object.entries(details.responses).map(([status, response]) => [
    status, typeOf(Object.values(response.content ?? {})[0]?.schema), response.description,
  ]);
  return node("details", { id: details.operationId },
    node("summary", {}, node("span", { class: "method" }, method.toUpperCase()), node("code", {}, path),
      node("span", { class: "rule" }, details["x-rule"] ?? "")),
    node("p", {}, details.description ?? details.summary ?? ""),
    parameters.length ? node("h4", {}, "Parameters") : null,
    parameters.length ? table(["name", "in", "type", "description"], parameters) : null,
    body ? node("p", {}, `Body: ${typeOf(body)}`) : null,
    node("h4", {}, "Responses"),
    table(["status", "type", "description"], responses));
}

function page(document_) {
  const groups = new Map();
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, details] of Object.entries(methods)) {
      const tag = details.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), operation(method, path, details)]);
    }
  }
  const models = Object.entries(document_.components.schemas).map(([name, schema]) => node("details", { id: name },
    node("summary", {}, node("code", {}, name)), node("p", {}, schema.description ?? ""),
    schema.properties ? fields(schema) : node("p", {}, typeOf(schema))));
  return [
    node("h1", {}, `${document_.info.title} HTTP API`),
    node("p", {}, document_.info.description, " The OpenAPI document is ", node("a", { href: "/openapi.json" }, "/openapi.json"),
      ". Send the token as ", node("code", {}, "Authorization: Bearer <token>"), "."),
    ...[...groups].flatMap(([tag, operations]) => [node("h2", {}, tag), ...operations]),
    node("h2", {}, "Models"), ...models,
  ];
}

const place = document.getElementById("docs");
try {
  const response = await fetch("/openapi.json");
  if (!response.ok) throw new Error(`The server responded with status ${response.status}.`);
  place.replaceChildren(...page(await response.json()));
} catch (error) {
  place.replaceChildren(node("p", { role: "alert" }, `Could not load /openapi.json: ${error.message}`));
}
