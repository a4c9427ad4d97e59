// All sessions that wait for a person, longest wait first.
import { html, useCallback, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { Approval } from "./approvals.js";
import { Settle } from "./tool_calls.js";
import { ago, plainly, titleOf } from "./words.js";

const EVERY = 2000;

export function Inbox() {
  const [found, setFound] = useState(null);
  const [more, setMore] = useState(false);
  const [trouble, setTrouble] = useState(null);
  const read = useCallback(async () => {
    try {
      const page = await api.inbox();
      setFound(page.items);
      setMore(page.more);
      setTrouble(null);
    } catch (error) {
      setTrouble(error.message);
    }
  }, []);
  const dismiss = (id) => api.dismiss(id).then(read, (error) => setTrouble(error.message));
  useEffect(() => {
    document.title = "Inbox · Holdfast";
    let stopped = false;
    let timer = 0;
    const again = async () => {
      if (!document.hidden) await read();
      if (!stopped) timer = setTimeout(again, EVERY);
    };
    again();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, []);
  return html`<section class="pane" aria-label="Inbox">
    <div class="page">
      <a class="back" href="#/" aria-label="All sessions">←</a>
      <h2>Inbox</h2>
      <p class="hint">Sessions that are waiting for you, longest first.</p>
      ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Retrying…</p>`}
      ${found !== null && !found.length && html`<p class="empty">Nothing is waiting for you.</p>`}
      ${(found ?? []).map(
        (session) => html`<article key=${session.id} class="waiting-session" aria-label=${titleOf(session)}>
          <p><a href=${`#/s/${encodeURIComponent(session.id)}`}>${titleOf(session)}</a> <span class="hint">${session.agent} · ${ago(session.active_at)}</span></p>
          ${session.approvals.map((call) => html`<${Approval} key=${`${call.call_id}/${call.digest}`} sessionId=${session.id} call=${call} onSent=${read} />`)}
          ${session.status === "failed" &&
          html`<p class="error">The last turn failed: ${plainly(session.error ?? "")}</p>
            <p class="row"><button type="button" onClick=${() => dismiss(session.id)}>Dismiss</button></p>`}
          ${session.problem && html`<p class="error">${session.problem}</p>`}
          ${session.effects.map(
            (effect) => html`<section key=${`${effect.run_id}/${effect.call_id}`} class="approval" aria-label=${`Outcome of ${effect.tool}`}>
              <h3>What is the outcome of <code>${effect.tool}</code>?</h3>
              <${Settle} effect=${effect} onSettled=${read} />
            </section>`,
          )}
          ${session.status === "waiting" && !session.approvals.length && html`<p class="hint">Waiting for ${session.waiting_for ?? "an answer"}. Open the session to continue.</p>`}
        </article>`,
      )}
      ${more && html`<p class="hint">More sessions are waiting. They appear here when these are done.</p>`}
    </div>
  </section>`;
}
