// The list of sessions, live, and the dialog that makes a new one.
import { html, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { REASON, STATUS, ago, titleOf } from "./words.js";

const EVERY = 2000;

export function Sessions({ chosen, agents }) {
  const [search, setSearch] = useState("");
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
          const page = await api.listSessions({ search });
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
  }, [search]);

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
    const page = await api.listSessions({ search, cursor: last }).catch(() => null);
    if (page) setOlder([...older, { items: page.items, next: page.next_cursor }]);
  };

  const first = new Set((found ?? []).map((session) => session.id));
  const all = [...(found ?? []), ...older.flatMap((page) => page.items.filter((session) => !first.has(session.id)))];
  const next = older.length ? older.at(-1).next : more;
  return html`<nav class="sessions" aria-label="Sessions">
    <div class="row">
      <input ref=${field} type="search" aria-label="Search titles" placeholder="Search titles ( / )" value=${search} onInput=${(event) => setSearch(event.target.value)} />
      <button type="button" class="primary" onClick=${() => setMaking(true)}>New</button>
    </div>
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Trying again.</p>`}
    <ul>
      ${all.map(
        (session) => html`<li key=${session.id}>
          <a href=${`#/s/${encodeURIComponent(session.id)}`} aria-current=${session.id === chosen ? "page" : undefined} class=${session.status === "waiting" ? "waits" : ""}>
            <span class="title">${titleOf(session)}</span>
            <span class="facts">
              <span class=${`status ${session.status}`}>${STATUS[session.status] ?? session.status}</span>
              ${REASON[session.waiting_for] && html`<span class="badge">${REASON[session.waiting_for]}</span>`}
              <span>${session.agent}</span>
              <time datetime=${session.active_at}>${ago(session.active_at)}</time>
              ${session.holder && html`<span title="who holds it">${session.holder}</span>`}
            </span>
          </a>
        </li>`,
      )}
    </ul>
    ${found !== null && !all.length && html`<p class="empty">${search ? "No title has this in it." : "No sessions yet."}</p>`}
    ${next && html`<button type="button" class="quiet" onClick=${readOlder}>Show older</button>`}
    ${making && html`<${NewSession} agents=${agents} onClose=${() => setMaking(false)} />`}
  </nav>`;
}

function NewSession({ agents, onClose }) {
  const box = useRef(null);
  const [agent, setAgent] = useState(agents[0] ?? "");
  const [title, setTitle] = useState("");
  const [problem, setProblem] = useState(null);
  useEffect(() => box.current?.showModal(), []);
  const make = async (event) => {
    event.preventDefault();
    try {
      const session = await api.createSession({ agent, title });
      box.current.close();
      location.hash = `#/s/${encodeURIComponent(session.id)}`;
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<dialog ref=${box} onClose=${onClose} aria-label="New session">
    <form onSubmit=${make}>
      <h2>New session</h2>
      <label>Agent
        ${agents.length
          ? html`<select value=${agent} onChange=${(event) => setAgent(event.target.value)}>
              ${agents.map((name) => html`<option value=${name}>${name}</option>`)}
            </select>`
          : html`<input type="text" required maxlength="200" value=${agent} onInput=${(event) => setAgent(event.target.value)} />`}
      </label>
      <label>Title
        <input type="text" maxlength="1000" placeholder="What is it about?" value=${title} onInput=${(event) => setTitle(event.target.value)} />
      </label>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <div class="row">
        <button type="submit" class="primary">Create</button>
        <button type="button" onClick=${() => box.current.close()}>Cancel</button>
      </div>
    </form>
  </dialog>`;
}
