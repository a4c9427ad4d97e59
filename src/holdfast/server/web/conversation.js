// The conversation: what was said and done, newest last. Each entry is drawn again only when it changed.
import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Code, Markdown } from "./markdown.js";
import { clock, lasting, pretty } from "./words.js";

const SHOWN = 120; // entries at first; earlier ones on demand
const PREVIEW = 4_000; // characters of a result at first
const MOST = 200_000;

const STATES = {
  planned: ["planned", "has not begun"],
  asks: ["asks", "waits for an answer"],
  running: ["running", "is running"],
  recorded: ["recorded", "its result is on record: it is never run again"],
  replayed: ["replayed", "its result was on record when its worker was gone: it was given again, not done again"],
  unknown: ["unknown", "it was begun and never seen to end: it was not repeated blindly"],
  failed: ["failed", "it failed"],
  denied: ["denied", "a person said no"],
  "not run": ["not run", "the conversation went on without it"],
};

function Long({ text, label }) {
  const [size, setSize] = useState(PREVIEW);
  if (text.length <= PREVIEW) return html`<${Code} text=${text} label=${label} />`;
  const shown = text.slice(0, size);
  const rest = text.length - shown.length;
  return html`<div>
    <${Code} text=${shown} label=${label} />
    ${rest > 0 &&
    html`<p class="hint">
      ${rest.toLocaleString()} more characters.
      ${size < MOST && html` <button type="button" class="quiet" onClick=${() => setSize(MOST)}>Show more</button>`}
    </p>`}
  </div>`;
}

function Running({ since }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<span>${lasting(Math.max(0, now - Date.parse(since)))}</span>`;
}

function argumentsText(given) {
  if (typeof given !== "string") return pretty(given ?? {});
  try {
    return JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    return given;
  }
}

function brief(given) {
  const text = argumentsText(given).replace(/\s+/g, " ");
  return text.length > 90 ? `${text.slice(0, 90)}…` : text;
}

function ToolCall({ call }) {
  const [label, meaning] = STATES[call.state] ?? [call.state, ""];
  const duration = call.started && call.ended ? lasting(Date.parse(call.ended) - Date.parse(call.started)) : null;
  return html`<details class=${`tool ${call.state.replace(" ", "-")}`} data-call=${call.id}>
    <summary>
      <span class="tool-name">${call.tool}</span>
      <span class="tool-brief">${brief(call.arguments)}</span>
      <span class="tool-time">${call.state === "running" ? html`<${Running} since=${call.started} />` : duration}</span>
      <span class=${`badge ${call.state.replace(" ", "-")}`} title=${meaning}>${label}${call.byHand ? " by hand" : ""}</span>
    </summary>
    <div class="tool-body">
      ${meaning && html`<p class="hint">This call: ${meaning}.</p>`}
      <${Long} text=${argumentsText(call.arguments)} label="arguments" />
      ${call.result !== undefined && html`<${Long} text=${pretty(call.result)} label="result" />`}
      ${call.error && html`<p class="error">${call.error}</p>`}
    </div>
  </details>`;
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

function Content({ content }) {
  if (typeof content === "string") return html`<div class="said">${content}</div>`;
  if (!Array.isArray(content)) return html`<${Long} text=${pretty(content)} label="content" />`;
  return content.map((part) => {
    if (typeof part === "string") return html`<div class="said">${part}</div>`;
    if (part?.kind === "text" || typeof part?.content === "string") return html`<div class="said">${part.content}</div>`;
    if (part?.kind === "binary" && PICTURES.has(part.media_type) && typeof part.data === "string") {
      const data = part.data.replaceAll("-", "+").replaceAll("_", "/");
      return html`<img class="picture" alt="Attached picture" src=${`data:${part.media_type};base64,${data}`} />`;
    }
    return html`<span class="chip">${part?.media_type ?? part?.kind ?? "attachment"}</span>`;
  });
}

function Part({ part }) {
  if (part.call) return html`<${ToolCall} call=${part.call} />`;
  if (part.kind === "text") return html`<${Markdown} text=${String(part.text ?? "")} />`;
  if (part.kind === "thinking") {
    return html`<details class="thinking"><summary>Thought</summary><${Markdown} text=${String(part.text ?? "")} /></details>`;
  }
  return html`<details class="thinking"><summary>${part.kind}</summary><${Long} text=${pretty(part.part)} label=${part.kind} /></details>`;
}

class Entry extends Component {
  shouldComponentUpdate(next) {
    return next.version !== this.props.version || next.item !== this.props.item;
  }

  render({ item }) {
    const gone = item.undone ? " undone" : "";
    if (item.type === "mark") {
      return html`<p class=${`mark ${item.tone}`} data-kind=${item.kind}>
        <span>${item.text}</span>
        ${item.fork && html` <a href=${`#/s/${encodeURIComponent(item.fork)}`}>Open the fork</a>`}
        <time datetime=${item.at}>${clock(item.at)}</time>
      </p>`;
    }
    if (item.type === "user") {
      return html`<article class=${`user${gone}`} aria-label=${item.undone ? "You said, undone" : "You said"}>
        <${Content} content=${item.content} />
      </article>`;
    }
    return html`<article class=${`answer${gone}`} aria-label=${item.undone ? "The agent said, undone" : "The agent said"}>
      ${item.parts.map((part) => html`<${Part} part=${part} />`)}
    </article>`;
  }
}

function Drafts({ drafts }) {
  if (!drafts.size) return null;
  const parts = [...drafts.values()].sort((one, other) => one.part - other.part);
  return html`<article class="answer draft" aria-label="The agent is saying">
    ${parts.map((draft) =>
      draft.kind === "thinking"
        ? html`<details class="thinking" key=${draft.key}><summary>Thinking…</summary><${Markdown} text=${draft.text} /></details>`
        : html`<${Markdown} key=${draft.key} text=${draft.text} />`,
    )}
  </article>`;
}

export function Conversation({ journal, version, queued, children }) {
  const box = useRef(null);
  const follows = useRef(true);
  const [shown, setShown] = useState(SHOWN);
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, queued, children]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 60;
  };
  const earlier = () => {
    const before = box.current.scrollHeight - box.current.scrollTop;
    follows.current = false;
    setShown(shown + 4 * SHOWN);
    requestAnimationFrame(() => {
      if (box.current) box.current.scrollTop = box.current.scrollHeight - before;
    });
  };
  const items = journal.items.slice(-shown);
  const hidden = journal.items.length - items.length;
  return html`<div class="conversation" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Conversation">
    <div class="column">
      ${hidden > 0 &&
      html`<button type="button" class="quiet earlier" onClick=${earlier}>Show earlier (${hidden.toLocaleString()} more)</button>`}
      ${items.map((item) => html`<${Entry} key=${item.key} item=${item} version=${item.version} />`)}
      <${Drafts} drafts=${journal.drafts} />
      ${children}
      ${queued.map(
        (one) => html`<article key=${one.key} class="user queued" aria-label="Queued">
          <div class="said">${one.text ?? "A message from elsewhere"}</div>
          <p class="hint">${one.note}</p>
        </article>`,
      )}
    </div>
  </div>`;
}

export function Message({ item }) {
  return html`<${Entry} item=${item} version=${item.version} />`;
}
