// The workers, their state, and the sessions that they run.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { count, lasting, titleOf } from "./words.js";

// The id is a UUID of version 7, which begins with the time at which the worker started.
const startedAt = (worker) => Number.parseInt(worker.id.replaceAll("-", "").slice(0, 12), 16);

function State({ left }) {
  const title = "A worker renews its lease every few seconds. When it expires, other workers take over its sessions.";
  if (left > 0) return html`<span class="badge done" title=${title}>alive, lease for ${lasting(left)}</span>`;
  return html`<span class="badge failed" title=${title}>lost, lease expired ${lasting(-left)} ago</span>`;
}

// The sessions that a worker runs. Sessions of other owners are only counted.
function Running({ worker, sessions }) {
  const own = sessions.filter((session) => session.holder === worker.name);
  const others = worker.sessions - own.length;
  if (!worker.sessions) return html`<span class="hint">idle</span>`;
  return html`<ul class="plain">
    ${own.map((session) => html`<li key=${session.id}><a href=${`#/s/${encodeURIComponent(session.id)}`}>${titleOf(session)}</a> <span class="hint">${session.agent}</span></li>`)}
    ${others > 0 && html`<li class="hint">${own.length ? "and " : ""}${count(others, own.length ? "other session" : "session")}</li>`}
  </ul>`;
}

export function Workers({ agents }) {
  const [found, setFound] = useState(null);
  const [sessions, setSessions] = useState([]);
  const [trouble, setTrouble] = useState(null);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    document.title = "Workers · Holdfast";
    let stopped = false;
    let timer = 0;
    const read = async () => {
      try {
        const [page, running] = await Promise.all([api.workers(), api.listSessions({ status: "running" })]);
        if (!stopped) {
          setFound(page.items);
          setSessions(running.items);
          setTrouble(null);
        }
      } catch (error) {
        if (!stopped) setTrouble(error.message);
      }
      setNow(Date.now());
      if (!stopped) timer = setTimeout(read, 1000);
    };
    read();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, []);
  return html`<section class="pane wide-list" aria-label="Workers">
    <div class="page">
    <a class="back" href="#/" aria-label="All sessions">←</a>
    <h2>Workers</h2>
    ${agents.length > 0 && html`<p class="hint">Agents of this server: ${agents.join(", ")}.</p>`}
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Retrying…</p>`}
    ${found !== null && !found.length && html`<p class="empty">No worker is running. Start one with <code>holdfast worker</code>.</p>`}
    ${found !== null &&
    found.length > 0 &&
    html`<div class="scroll">
      <table>
        <thead><tr><th>worker</th><th>agents</th><th>running</th><th>uptime</th><th>state</th></tr></thead>
        <tbody>
          ${found.map((worker) => {
            const shell = /^shell (\d+) \d+ (\S+)/.exec(worker.name);
            return html`<tr key=${worker.id}>
              <td class="mono" data-label="worker">${shell ? `process ${shell[1]} on ${shell[2]}` : worker.name}</td>
              <td data-label="agents">${shell ? "–" : worker.agents.join(", ") || "–"}</td>
              <td data-label="running">${shell ? "shell commands" : html`<${Running} worker=${worker} sessions=${sessions} />`}</td>
              <td data-label="uptime">${lasting(now - startedAt(worker))}</td>
              <td data-label="state"><${State} left=${Date.parse(worker.deadline) - now} /></td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>`}
    </div>
  </section>`;
}
