// Markdown as nodes. Text never becomes HTML: unsupported syntax is shown unchanged.
import { h, html, useMemo, useState } from "./preact.js";

const LONG = 100_000; // longer text is shown without formatting
const INLINE =
  /(?<!`)(`{1,3})([^`]+?)\1(?!`)|\*\*([^*\n]+?)\*\*|__([^_\n]+?)__|~~([^~\n]+?)~~|(?<![\w*])\*([^*\s][^*\n]*?)\*(?!\w)|(?<!\w)_([^_\s][^_\n]*?)_(?!\w)|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>()"']+)/;

function link(target, children) {
  if (!/^(https?:|mailto:)/i.test(target)) return children;
  return h("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, children);
}

export function inline(text, depth = 0) {
  const nodes = [];
  let rest = text;
  for (let n = 0; rest && n < 2000 && depth < 6; n++) {
    const found = INLINE.exec(rest);
    if (!found) break;
    if (found.index) nodes.push(rest.slice(0, found.index));
    rest = rest.slice(found.index + found[0].length);
    const [, , code, strong, strong2, strike, weak, weak2, label, target, bare] = found;
    if (code !== undefined) nodes.push(h("code", null, code));
    else if (strong ?? strong2) nodes.push(h("strong", null, inline(strong ?? strong2, depth + 1)));
    else if (strike) nodes.push(h("del", null, inline(strike, depth + 1)));
    else if (weak ?? weak2) nodes.push(h("em", null, inline(weak ?? weak2, depth + 1)));
    else if (label) nodes.push(link(target, inline(label, depth + 1)));
    else nodes.push(link(bare, bare));
  }
  if (rest) nodes.push(rest);
  return nodes;
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// Without a regular expression, which would take quadratic time for some texts.
function withoutHashes(title) {
  let end = title.length;
  while (end > 0 && title[end - 1] === "#") end--;
  return title.slice(0, end).trimEnd();
}

export function blocks(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const nodes = [];
  let at = 0;
  const starts = (line) =>
    /^\s{0,3}(```|~~~|#{1,6}\s|>|(?:[-*_]\s*){3,}$)/.test(line) || ITEM.test(line);
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    const heading = /^\s{0,3}(#{1,6})\s+(.*)$/.exec(line.trimEnd());
    if (!line.trim()) at++;
    else if (fence) {
      const body = [];
      for (at++; at < lines.length && !lines[at].trimStart().startsWith(fence[1]); at++) body.push(lines[at]);
      at++;
      nodes.push(h(Code, { language: fence[2], text: body.join("\n") }));
    } else if (heading) {
      nodes.push(h(`h${Math.min(6, heading[1].length + 2)}`, null, inline(withoutHashes(heading[2]))));
      at++;
    } else if (/^\s{0,3}([-*_])\s*(?:\1\s*){2,}$/.test(line)) {
      nodes.push(h("hr"));
      at++;
    } else if (/^\s{0,3}>/.test(line) && depth < 5) {
      const body = [];
      for (; at < lines.length && /^\s{0,3}>/.test(lines[at]); at++) body.push(lines[at].replace(/^\s{0,3}> ?/, ""));
      nodes.push(h("blockquote", null, blocks(body.join("\n"), depth + 1)));
    } else if (ITEM.test(line) && depth < 5) {
      const [node, next] = list(lines, at, depth);
      nodes.push(node);
      at = next;
    } else if (line.includes("|") && /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/.test((lines[at + 1] ?? "").trim())) {
      const rows = [];
      const head = cells(line);
      for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at++) rows.push(cells(lines[at]));
      nodes.push(table(head, rows));
    } else {
      const body = [line];
      for (at++; at < lines.length && lines[at].trim() && !starts(lines[at]); at++) body.push(lines[at]);
      nodes.push(h("p", null, inline(body.join("\n"))));
    }
  }
  return nodes;
}

function list(lines, start, depth) {
  const [, indent, bullet] = ITEM.exec(lines[start]);
  const ordered = /\d/.test(bullet);
  const items = [];
  let at = start;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== ordered) break;
    const body = [found[3]];
    const deep = indent.length + found[2].length + 1;
    for (at++; at < lines.length; at++) {
      const line = lines[at];
      const inside = line.startsWith(" ".repeat(Math.min(deep, indent.length + 2)));
      if (inside || (!line.trim() && (lines[at + 1] ?? "").startsWith(" ".repeat(indent.length + 2)))) {
        body.push(line.slice(Math.min(deep, line.length - line.trimStart().length)));
      } else break;
    }
    const simple = body.length === 1;
    items.push(h("li", null, simple ? inline(body[0]) : blocks(body.join("\n"), depth + 1)));
    while (at < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at++;
  }
  const first = ordered ? Number.parseInt(bullet, 10) : 1;
  return [h(ordered ? "ol" : "ul", ordered && first !== 1 ? { start: first } : null, items), at];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function table(head, rows) {
  return html`<div class="scroll">
    <table>
      <thead><tr>${head.map((cell) => html`<th>${inline(cell)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

export function Code({ text, language = "", label = "code" }) {
  const [copied, setCopied] = useState(false);
  const copy = () =>
    navigator.clipboard?.writeText(text).then(
      () => setCopied(true),
      () => setCopied(false),
    );
  return html`<figure class="code">
    <figcaption>
      <span>${language || label}</span>
      <button type="button" class="quiet" aria-label="Copy this code" onClick=${copy}>${copied ? "copied" : "copy"}</button>
    </figcaption>
    <pre tabindex="0"><code>${text}</code></pre>
  </figure>`;
}

export function Markdown({ text }) {
  return useMemo(
    () => html`<div class="markdown">${text.length > LONG ? h("pre", { class: "plain" }, text) : blocks(text)}</div>`,
    [text],
  );
}
