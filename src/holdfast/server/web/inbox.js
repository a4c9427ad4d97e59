// Everything that waits for a person, in all sessions, oldest first.
import { html, useCallback, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { Approval } from "./approvals.js";
import { ago, titleOf } from "./words.js";

const EVERY = 2000;

export function Inbox() {
  const [found, setFound] = useState(null);
  const [more, setMore] = useState(false);
  const [trouble, setTrouble] = useState(null);
  const known = useRef(new Map()); // what was read of each session, until it changes
  const detailOf = async (session) => {
    const before = known.current.get(session.id);
    return before?.seq === session.seq ? before : api.readSession(session.id).catch(() => null);
  };
  const read = useCallback(async () => {
    try {
      const page = await api.listSessions({ status: "waiting" });
      const details = (await Promise.all(page.items.map(detailOf))).filter((detail) => detail?.status === "waiting");
      known.current = new Map(details.map((detail) => [detail.id, detail]));
      setFound(details.reverse());
      setMore(page.next_cursor !== null);
      setTrouble(null);
    } catch (error) {
      setTrouble(error.message);
    }
  }, []);
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
      <p class="hint">Sessions that wait for your decision, longest first.</p>
      ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Trying again.</p>`}
      ${found !== null && !found.length && html`<p class="empty">Nothing waits for you.</p>`}
      ${(found ?? []).map(
        (session) => html`<article key=${session.id} class="waiting-session" aria-label=${titleOf(session)}>
          <p><a href=${`#/s/${encodeURIComponent(session.id)}`}>${titleOf(session)}</a> <span class="hint">${session.agent} · ${ago(session.active_at)}</span></p>
          ${session.asked.map((asked) => html`<${Approval} key=${`${asked.call_id}/${asked.digest}`} sessionId=${session.id} asked=${asked} onSent=${read} />`)}
          ${!session.asked.length && html`<p class="hint">It waits for ${session.waiting_for ?? "an answer"}. Open the session to continue.</p>`}
        </article>`,
      )}
      ${more && html`<p class="hint">More sessions wait. They appear here when these are answered.</p>`}
    </div>
  </section>`;
}
