// The conversation: messages and tool calls, newest last. An entry is only redrawn when it has changed.
import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { Code, Markdown } from "./markdown.js";
import { argumentsText, clock, count, lasting, moment, outcome, pretty } from "./words.js";

const SHOWN = 80; // entries at first; earlier ones on demand
const PREVIEW = 4_000; // characters of a result at first
const MOST = 200_000;

export function Long({ text, label }) {
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

// The summary of a folded card. A single argument is shown without its name.
function brief(given) {
  const whole = argumentsText(given);
  let text = whole;
  try {
    const values = Object.values(JSON.parse(whole));
    if (values.length === 0) text = "";
    if (values.length === 1) text = pretty(values[0]);
  } catch {
    // not JSON: show it unchanged
  }
  text = text.replace(/\s+/g, " ");
  return text.length > 90 ? `${text.slice(0, 90)}…` : text;
}

const REFERENCE = /^media\+sha256:\/\/([0-9a-f]{64})(#\w+)?$/;
const LIVE = 20_000; // characters of a running command's output

// The live output of a running call's shell command. Calls without a command show nothing.
function Live({ call }) {
  const [text, setText] = useState("");
  const box = useRef(null);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let command = null;
    let after = -1;
    let attempts = 0;
    const load = async () => {
      try {
        if (command === null) {
          const id = String(call.id).replace(/~\d+$/, "");
          const found = (await api.commands(call.session)).items;
          command = found.find((one) => one.call_id === id && Date.parse(one.started_at) >= Date.parse(call.started) - 1000)?.id ?? null;
          attempts++;
        }
        if (command !== null) {
          const { items } = await api.output(call.session, command, after);
          if (stopped) return;
          after = items.at(-1)?.order ?? after;
          const more = items.map((one) => (one.stdout ?? "") + (one.stderr ?? "")).join("");
          if (more) setText((before) => (before + more).slice(-LIVE));
        }
      } catch {
        // the feed shows the problem
      }
      if (!stopped) timer = setTimeout(load, command === null ? Math.min(300 * attempts, 3000) : 250);
    };
    load();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [call]);
  useLayoutEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return text && html`<pre class="live" ref=${box} tabindex="0" aria-label="Output so far">${text}</pre>`;
}

function Media({ sha256, type }) {
  const address = `/api/media/${sha256}`;
  if (PICTURES.has(type)) return html`<img class="picture" alt="Attached image" loading="lazy" src=${address} />`;
  return html`<p><a class="chip" href=${address} target="_blank" rel="noopener">${type ?? "large text"}, stored as media</a></p>`;
}

// A result: the output of a command, text, images, or any other value.
export function Result({ value }) {
  const kept = typeof value === "string" ? REFERENCE.exec(value) : null;
  if (kept) return html`<${Media} sha256=${kept[1]} />`;
  if (Array.isArray(value) && value.some((one) => one?.kind === "binary")) return html`<${Content} content=${value} />`;
  if (value?.kind === "binary") return html`<${Content} content=${[value]} />`;
  if (value && typeof value.stdout === "string" && "exit_code" in value) {
    return html`<div>
      <p class="hint">exit code ${value.exit_code}</p>
      ${value.stdout && html`<${Long} text=${value.stdout} label="output" />`}
      ${value.stderr && html`<${Long} text=${value.stderr} label="errors" />`}
    </div>`;
  }
  return html`<${Long} text=${pretty(value)} label="result" />`;
}

function hasPicture(value) {
  return (Array.isArray(value) ? value : [value]).some((one) => one?.kind === "binary" && PICTURES.has(one.media_type));
}

function decision({ approved, by, edited }) {
  return `${approved ? "approved" : "denied"}${edited ? " with edits" : ""}${by ? ` by ${by}` : ""}`;
}

// The steps of a tool call, or of the turn of a plain agent.
function Steps({ steps }) {
  return html`<ul class="steps">${[...steps.values()].map((step) => {
    const { label, meaning, className } = outcome(step.state);
    const duration = step.started && step.ended ? lasting(Date.parse(step.ended) - Date.parse(step.started)) : null;
    const pause = step.state === "waiting" ? "waits to be tried again" : label;
    return html`<li key=${step.entry} style=${`--depth: ${step.depth}`}>
      <span class="tool-name">${step.name}</span>
      ${step.attempt > 1 && html`<span class="tool-time">attempt ${step.attempt}</span>`}
      ${step.probe && html`<span class="tool-time">probe: ${step.probe}</span>`}
      <span class="tool-time">${step.state === "running" ? html`<${Running} since=${step.started} />` : duration}</span>
      <span class=${`badge ${className}`} title=${meaning}>${pause}</span>
      ${step.error && html`<p class="error">${step.error}</p>`}
    </li>`;
  })}</ul>`;
}

function ToolCall({ call }) {
  const { label, meaning, className } = outcome(call.state);
  const duration = call.started && call.ended ? lasting(Date.parse(call.ended) - Date.parse(call.started)) : null;
  return html`<details class=${`tool ${className}`} data-call=${call.id}>
    <summary>
      <span class="tool-name">${call.tool}</span>
      <span class="tool-brief">${brief(call.arguments)}</span>
      ${call.answer && html`<span class="tool-time decision" title=${moment(call.answer.at)}>${decision(call.answer)}, ${clock(call.answer.at)}</span>`}
      <span class="tool-time">${call.state === "running" ? html`<${Running} since=${call.started} />` : duration}</span>
      <span class=${`badge ${className}`} title=${meaning}>${label}${call.manual ? " manually" : ""}</span>
    </summary>
    <div class="tool-body">
      ${meaning && html`<p class="hint">${meaning}</p>`}
      <${Long} text=${argumentsText(call.arguments)} label="arguments" />
      ${call.steps && html`<${Steps} steps=${call.steps} />`}
      ${call.result !== undefined && !hasPicture(call.result) && html`<${Result} value=${call.result} />`}
      ${call.error && html`<p class="error">${call.error}</p>`}
    </div>
  </details>
  ${call.state === "running" && html`<${Live} key=${call.started} call=${call} />`}
  ${hasPicture(call.result) && html`<${Result} value=${call.result} />`}`;
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

function Content({ content }) {
  const whole = typeof content === "string" ? REFERENCE.exec(content) : null;
  if (whole) return html`<${Media} sha256=${whole[1]} />`;
  if (typeof content === "string") return html`<div class="message-text">${content}</div>`;
  if (!Array.isArray(content)) return html`<${Long} text=${pretty(content)} label="content" />`;
  return content.map((part) => {
    if (typeof part === "string" && REFERENCE.test(part)) return html`<${Media} sha256=${REFERENCE.exec(part)[1]} />`;
    if (typeof part === "string") return html`<div class="message-text">${part}</div>`;
    if (part?.kind === "text" || typeof part?.content === "string") return html`<div class="message-text">${part.content}</div>`;
    const kept = part?.kind === "binary" && typeof part.data === "string" ? REFERENCE.exec(part.data) : null;
    if (kept) return html`<${Media} sha256=${kept[1]} type=${part.media_type} />`;
    if (part?.kind === "binary" && PICTURES.has(part.media_type) && typeof part.data === "string") {
      const data = part.data.replaceAll("-", "+").replaceAll("_", "/");
      return html`<img class="picture" alt="Attached image" src=${`data:${part.media_type};base64,${data}`} />`;
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

// A message that failed before its run started, which is read from the queue.
function FailedMessage({ session, submission }) {
  const [sent, setSent] = useState(null);
  useEffect(() => {
    api.failures(session, true).then(
      (found) => setSent(found.find((one) => one.submission_id === submission)?.payload ?? null),
      () => {}, // the mark above shows the reason
    );
  }, [submission]);
  if (!sent) return null;
  return html`<article class="user failed" aria-label="Your message, failed"><${Content} content=${sent.text ?? sent.content ?? ""} /></article>`;
}

class Entry extends Component {
  shouldComponentUpdate(next) {
    return next.version !== this.props.version || next.item !== this.props.item;
  }

  render({ item }) {
    const gone = item.undone ? " undone" : "";
    if (item.type === "mark") {
      return html`${item.submission && html`<${FailedMessage} session=${item.session} submission=${item.submission} />`}<p class=${`mark ${item.tone}`} data-kind=${item.kind}>
        <span>${item.text}</span>
        ${item.fork && html` <a href=${`#/s/${encodeURIComponent(item.fork)}`}>Open the fork</a>`}
        <time datetime=${item.at}>${clock(item.at)}</time>
      </p>`;
    }
    if (item.type === "user") {
      return html`<article class=${`user${gone}`} aria-label=${item.undone ? "Your message, undone" : "Your message"}>
        <${Content} content=${item.content} />
      </article>`;
    }
    if (item.type === "steps") {
      return html`<article class=${`answer${gone}`} aria-label="Steps"><${Steps} steps=${item.steps} /></article>`;
    }
    const label = item.partial ? "Agent message, stopped" : "Agent message";
    return html`<article class=${`answer${gone}`} aria-label=${item.undone ? `${label}, undone` : label}>
      ${item.parts.map((part) => html`<${Part} part=${part} />`)}
    </article>`;
  }
}

// Where a growing text can be split: the part before it will not change.
function settled(text) {
  let at = text.lastIndexOf("\n\n");
  while (at > 0 && text.slice(0, at).split("```").length % 2 === 0) at = text.lastIndexOf("\n\n", at - 1);
  return Math.max(0, at);
}

class Settled extends Component {
  shouldComponentUpdate(next) {
    return next.text !== this.props.text;
  }

  render({ text }) {
    return html`<${Markdown} text=${text} />`;
  }
}

function Growing({ text }) {
  const at = settled(text);
  return html`${at > 0 && html`<${Settled} text=${text.slice(0, at)} />`}<${Markdown} text=${text.slice(at)} />`;
}

// The text that the model is streaming. It is drawn separately, so that new words do not redraw the rest.
function Drafts({ journal }) {
  const [, redraw] = useState(0);
  useEffect(() => {
    journal.drawDrafts = () => redraw((n) => n + 1);
    return () => {
      journal.drawDrafts = () => {};
    };
  }, [journal]);
  if (!journal.drafts.size) return null;
  const parts = [...journal.drafts.values()].sort((one, other) => one.part - other.part);
  return html`<article class="answer draft" aria-label="The agent is writing">
    ${parts.map((draft) =>
      draft.kind === "thinking"
        ? html`<details class="thinking" key=${draft.key}><summary>Thinking…</summary><${Markdown} text=${draft.text} /></details>`
        : html`<${Growing} key=${draft.key} text=${draft.text} />`,
    )}
  </article>`;
}

export function Conversation({ journal, version, queued, call, children }) {
  const box = useRef(null);
  const follows = useRef(true);
  const top = useRef(0);
  const [shown, setShown] = useState(SHOWN);
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, queued, children]);
  useEffect(() => {
    // Images and live output change their height after they are drawn.
    const grown = new ResizeObserver(() => {
      if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    });
    grown.observe(box.current.firstElementChild);
    return () => grown.disconnect();
  }, []);
  // Show the call in the address, once it is loaded.
  const found = useRef(null);
  useLayoutEffect(() => {
    if (!call || found.current === call) return;
    const place = journal.items.findLastIndex((item) => item.parts?.some((part) => part.call?.id === call));
    if (place < 0) return;
    if (journal.items.length - place > shown) {
      setShown(journal.items.length - place + 10);
      return;
    }
    const card = box.current.querySelector(`[data-call="${CSS.escape(call)}"]`);
    if (!card) return;
    found.current = call;
    follows.current = false;
    card.open = true;
    card.classList.add("chosen");
    card.scrollIntoView({ block: "center" });
  }, [call, version, shown]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    // New content does not scroll up: only a user who scrolls up stops following.
    if (scrollHeight - scrollTop - clientHeight < 60) follows.current = true;
    else if (scrollTop < top.current) follows.current = false;
    top.current = scrollTop;
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
      <${Drafts} journal=${journal} />
      ${children}
      ${queued.map(
        (one) => html`<article key=${one.key} class="user queued" aria-label="Queued">
          <div class="message-text">${one.text ?? "A message from another client"}</div>
          ${one.pictures > 0 && html`<span class="chip">${count(one.pictures, "image")}</span>`}
          <p class="hint">${one.note}</p>
        </article>`,
      )}
    </div>
  </div>`;
}

export function Message({ item }) {
  return html`<${Entry} item=${item} version=${item.version} />`;
}
