// The list of sessions, live, and the dialog that creates one.
import { html, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { REASON, STATUS, ago, sleepsFor, titleOf } from "./words.js";

const EVERY = 2000;
const WATCHING = [
  ["", "Background: continue the turn"],
  ["handover", "Attached: hand over after 3 min"],
  ["interrupt", "Attached: stop after 3 min"],
];

function Row({ session, chosen, below }) {
  const children = below.get(session.id) ?? [];
  return html`<li>
    <a href=${`#/s/${encodeURIComponent(session.id)}`} aria-current=${session.id === chosen ? "page" : undefined} class=${session.status === "waiting" ? "waits" : ""}>
      <span class="title">${titleOf(session)}</span>
      <span class="facts">
        <span class=${`status ${session.status}`} title=${session.error}>${STATUS[session.status] ?? session.status}</span>
        ${REASON[session.waiting_for] && html`<span class="badge">${REASON[session.waiting_for]}</span>`}
        ${sleepsFor(session) && html`<span class="sleeps">${sleepsFor(session)}</span>`}
        <span>${session.agent}</span>
        <time datetime=${session.active_at}>${ago(session.active_at)}</time>
        ${session.holder && html`<span title="The worker that runs this session">${session.holder}</span>`}
      </span>
    </a>
    ${children.length > 0 && html`<ul aria-label="Delegates">${children.map((child) => html`<${Row} key=${child.id} session=${child} chosen=${chosen} below=${below} />`)}</ul>`}
  </li>`;
}

// Returns the sessions without a parent in the list, and the delegates of each.
function nested(sessions) {
  const ids = new Set(sessions.map((session) => session.id));
  const below = new Map();
  const top = [];
  for (const session of sessions) {
    if (!ids.has(session.parent_id)) top.push(session);
    else below.set(session.parent_id, [...(below.get(session.parent_id) ?? []), session]);
  }
  return { top, below };
}

// `current` is the session that is open, as its header shows it.
export function Sessions({ chosen, agents, current }) {
  const [search, setSearch] = useState("");
  const [status, setStatus] = useState("");
  const [found, setFound] = useState(null);
  const [more, setMore] = useState(null);
  const [older, setOlder] = useState([]);
  const [trouble, setTrouble] = useState(null);
  const [making, setMaking] = useState(false);
  const field = useRef(null);

  useEffect(() => {
    let stopped = false;
    let timer = 0;
    setOlder([]);
    const read = async () => {
      if (!document.hidden || found === null) {
        try {
          const page = await api.listSessions({ search, status });
          if (stopped) return;
          setFound(page.items);
          setMore(page.next_cursor);
          setTrouble(null);
        } catch (error) {
          if (stopped) return;
          setTrouble(error.message);
        }
      }
      timer = setTimeout(read, EVERY);
    };
    timer = setTimeout(read, search ? 200 : 0);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [search, status, current?.id, current?.status, current?.title]);

  useEffect(() => {
    const onKey = (event) => {
      const writing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (writing || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        event.preventDefault();
        field.current?.focus();
      } else if (event.key === "n") {
        event.preventDefault();
        setMaking(true);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);

  const readOlder = async () => {
    const last = older.at(-1)?.next ?? more;
    const page = await api.listSessions({ search, status, cursor: last }).catch(() => null);
    if (page) setOlder([...older, { items: page.items, next: page.next_cursor }]);
  };

  const first = new Set((found ?? []).map((session) => session.id));
  const listed = [...(found ?? []), ...older.flatMap((page) => page.items.filter((session) => !first.has(session.id)))];
  const all = listed.map((session) => (session.id === current?.id && current.seq >= session.seq ? { ...session, ...current } : session));
  const { top, below } = nested(all.filter((session) => !status || session.status === status));
  const next = older.length ? older.at(-1).next : more;
  const nothing = search || status ? "No session matches." : "No sessions yet.";
  return html`<nav class="sessions" aria-label="Sessions">
    <div class="row">
      <input ref=${field} type="search" aria-label="Search titles" placeholder="Search titles ( / )" value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <button type="button" class="primary" onClick=${() => setMaking(true)}>New</button>
    </div>
    <select aria-label="Filter by status" value=${status} onChange=${(event) => setStatus(event.target.value)}>
      <option value="">All sessions</option>
      ${Object.entries(STATUS).map(([value, label]) => html`<option value=${value}>${label}</option>`)}
    </select>
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Retrying…</p>`}
    <ul>
      ${top.map((session) => html`<${Row} key=${session.id} session=${session} chosen=${chosen} below=${below} />`)}
    </ul>
    ${found !== null && !top.length && html`<p class="empty">${nothing}</p>`}
    ${next && html`<button type="button" class="quiet" onClick=${readOlder}>Show older</button>`}
    ${making && html`<${NewSession} agents=${agents} onClose=${() => setMaking(false)} />`}
  </nav>`;
}

function NewSession({ agents, onClose }) {
  const box = useRef(null);
  const writing = useRef(null);
  const [agent, setAgent] = useState(agents[0] ?? "");
  const [message, setMessage] = useState("");
  const [title, setTitle] = useState("");
  const [unwatched, setUnwatched] = useState("");
  const [problem, setProblem] = useState(null);
  const [sending, setSending] = useState(false);
  useEffect(() => {
    box.current?.showModal();
    writing.current?.focus();
  }, []);
  const make = async (event) => {
    event.preventDefault();
    if (sending) return;
    setSending(true);
    try {
      const metadata = unwatched ? { attached: { on_unwatched: unwatched } } : {};
      const session = await api.createSession({ agent, title, metadata });
      if (message.trim()) await api.submit(session.id, { kind: "message", text: message, idempotency_key: api.newKey() });
      box.current.close();
      location.hash = `#/s/${encodeURIComponent(session.id)}`;
    } catch (error) {
      setProblem(error.message);
      setSending(false);
    }
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) make(event);
  };
  return html`<dialog ref=${box} onClose=${onClose} aria-label="New session">
    <form onSubmit=${make}>
      <h2>New session</h2>
      <label>First message
        <textarea ref=${writing} rows="3" placeholder="Enter creates, Shift+Enter adds a line" value=${message} onInput=${(event) => setMessage(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      </label>
      <label>Agent
        ${agents.length
          ? html`<select value=${agent} onChange=${(event) => setAgent(event.target.value)}>
              ${agents.map((name) => html`<option value=${name}>${name}</option>`)}
            </select>`
          : html`<input type="text" required maxlength="200" value=${agent} onInput=${(event) => setAgent(event.target.value)} />`}
      </label>
      <label>Title
        <input type="text" maxlength="1000" placeholder="Default: the first message" value=${title} onInput=${(event) => setTitle(event.target.value)} />
      </label>
      <label>When no one is watching
        <select value=${unwatched} onChange=${(event) => setUnwatched(event.target.value)}>
          ${WATCHING.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
        </select>
      </label>
      ${unwatched && html`<p class="hint">3 minutes after the last viewer leaves, the turn ${unwatched === "interrupt" ? "stops" : "moves to the background"}.</p>`}
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <div class="row">
        <button type="submit" class="primary" disabled=${sending}>Create</button>
        <button type="button" onClick=${() => box.current.close()}>Cancel</button>
      </div>
    </form>
  </dialog>`;
}
