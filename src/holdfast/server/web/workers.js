// Who is alive, what they hold, and how long their word is good.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { count, lasting } from "./words.js";

export function Workers() {
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    document.title = "Workers · Holdfast";
    let stopped = false;
    let timer = 0;
    const read = async () => {
      try {
        const page = await api.workers();
        if (!stopped) {
          setFound(page.items);
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
  return html`<section class="pane workers" aria-label="Workers">
    <a class="back" href="#/" aria-label="All sessions">←</a>
    <h2>Workers</h2>
    <p class="hint">A worker renews its deadline every few seconds. Once it is past, others take over what it held.</p>
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Trying again.</p>`}
    ${found !== null && !found.length && html`<p class="empty">Nobody is there to run anything. Start one: <code>holdfast worker</code>.</p>`}
    ${found !== null &&
    found.length > 0 &&
    html`<div class="scroll">
      <table>
        <thead><tr><th>name</th><th>holds</th><th>deadline</th></tr></thead>
        <tbody>
          ${found.map((worker) => {
            const left = Date.parse(worker.deadline) - now;
            const shell = /^shell (\d+) \d+ (\S+)/.exec(worker.name);
            return html`<tr key=${worker.id}>
              <td class="mono">${shell ? `process ${shell[1]} on ${shell[2]}` : worker.name}</td>
              <td>${shell ? "runs shell commands" : count(worker.sessions, "session")}</td>
              <td><span class=${`badge ${left > 0 ? "recorded" : "failed"}`}>${left > 0 ? `good for ${lasting(left)}` : `past for ${lasting(-left)}`}</span></td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>`}
  </section>`;
}
