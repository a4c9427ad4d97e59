// One session: its header, its conversation, and the views of its timeline, tool calls and retention.
import { html, useCallback, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { Approval } from "./approvals.js";
import { Composer, partsOf } from "./composer.js";
import { Conversation } from "./conversation.js";
import { Journal } from "./journal.js";
import { Foreign } from "./foreign.js";
import { ToolCalls } from "./tool_calls.js";
import { Restore, Retention } from "./retention.js";
import { follow } from "./stream.js";
import { Timeline } from "./timeline.js";
import { STATUS, count, moment, plainly, sleepsFor, titleFrom, titleOf } from "./words.js";

const BUSY = new Set(["running", "queued", "waiting", "sleeping"]);
const HINTS = {
  stop: "Stops this turn. Everything done so far is kept.",
  background: "The turn continues on a worker when you close this page.",
  undo: "Goes back to before your last message. All events are kept.",
  retry: "Continues the turn that failed or was stopped. What is recorded of it is not done again.",
  undoEffects: "Undoes what the steps of this turn did, the last one first. The conversation stays as it is.",
  dismiss: "Marks the session as idle. The conversation keeps the failure.",
  compact: "Replaces the history with a shorter one, so that the model reads less.",
};

// Adds a session's feed to a journal. Draws at most once per frame.
function useJournal(id, life) {
  const [, redraw] = useState(0);
  const kept = useRef(null);
  if (kept.current?.id !== id || kept.current.life !== life) {
    kept.current = { id, life, journal: new Journal(id), link: "connecting", reason: null };
  }
  const here = kept.current;
  useEffect(() => {
    let frame = 0;
    let late = 0;
    let since = 0; // when the first undrawn entry came
    let whole = false; // redraw everything, not only the drafts
    const now = () => {
      clearTimeout(late);
      cancelAnimationFrame(frame);
      frame = late = since = 0;
      if (whole) redraw((n) => n + 1);
      else here.journal.drawDrafts();
      whole = false;
    };
    const draw = (many, everything = true) => {
      whole ||= everything;
      // During a long catch-up, draw at its end or twice a second. A hidden tab gets no animation frames, so it uses a timer.
      if (many || document.hidden) {
        since ||= performance.now();
        clearTimeout(late);
        late = setTimeout(now, Math.min(document.hidden ? 150 : 40, Math.max(0, since + 500 - performance.now())));
      } else frame ||= requestAnimationFrame(now);
    };
    return follow(id, here.journal.seq, {
      batch(entries) {
        const before = here.journal.seq;
        here.journal.take(entries);
        draw(entries.length > 20, here.journal.seq > before);
      },
      state(link, reason = null) {
        here.link = link;
        here.reason = reason ?? here.reason;
        draw(false);
      },
    });
  }, [id, life]);
  return here;
}

function useDetail(id, seq) {
  const [detail, setDetail] = useState(null);
  const newest = useRef(0);
  const read = useCallback(() => {
    const number = ++newest.current;
    api.readSession(id).then(
      (found) => number === newest.current && setDetail(found),
      () => {}, // the feed shows the problem
    );
  }, [id]);
  useEffect(() => {
    setDetail(null);
    const timer = setInterval(read, 4000);
    return () => clearInterval(timer);
  }, [id]);
  useEffect(() => {
    const timer = setTimeout(read, seq === 0 ? 0 : 80);
    return () => clearTimeout(timer);
  }, [id, seq]);
  return [detail?.id === id ? detail : null, read];
}

// Messages that this browser sent and the feed has not shown yet.
function useSent(id, journal) {
  const [sent, setSent] = useState(() => remembered(id));
  useEffect(() => setSent(remembered(id)), [id]);
  const change = (next) =>
    setSent((before) => {
      const after = next(before);
      sessionStorage.setItem(`sent/${id}`, JSON.stringify(after.filter((one) => one.submission)));
      return after;
    });
  const send = async (text, when, pictures) => {
    const key = api.newKey();
    const update = (facts) => change((all) => all.map((one) => (one.key === key ? { ...one, ...facts } : one)));
    change((all) => [...all, { key, text, pictures: pictures.length, note: "sending…" }]);
    const content = pictures.length ? { content: partsOf(text, pictures) } : { text };
    const facts = { kind: "message", ...content, when_busy: when, idempotency_key: key };
    try {
      const made = await api.sendWithRetry(id, facts, () => update({ note: "not sent yet: the server does not respond" }));
      update({ submission: made.submission_id, position: made.position, note: when === "steer" ? "will be added to this turn" : "queued" });
    } catch (error) {
      update({ note: `rejected: ${error.message}` });
    }
  };
  const texts = new Map(sent.map((one) => [one.submission, one]));
  const unseen = sent.filter((one) => !one.submission || one.position > journal.seq);
  const queued = [...journal.queue.values()].map((one) => ({ note: "queued", ...texts.get(one.id), key: one.id }));
  return { queued: [...queued, ...unseen], send };
}

function remembered(id) {
  try {
    return JSON.parse(sessionStorage.getItem(`sent/${id}`) ?? "[]");
  } catch {
    return [];
  }
}

function Link({ link, reason }) {
  if (link === "live") return null;
  const words = {
    connecting: "Connecting…",
    reconnecting: "Reconnecting… This page may be out of date. Nothing is lost.",
    gone: reason ?? "This session no longer exists.",
  };
  return html`<p class=${`banner ${link}`} role="status">${words[link] ?? link}</p>`;
}

function Title({ detail, onChanged, onProblem }) {
  const [text, setText] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    try {
      await api.changeSession(detail.id, { title: text });
      setText(null);
      onChanged();
    } catch (error) {
      onProblem(error.message);
    }
  };
  if (text === null) {
    return html`<h2>
      ${titleOf(detail)}
      <button type="button" class="quiet" aria-label="Rename this session" onClick=${() => setText(detail.title)}>✎</button>
    </h2>`;
  }
  return html`<form class="row" onSubmit=${save}>
    <input type="text" aria-label="Title" maxlength="1000" value=${text} onInput=${(event) => setText(event.target.value)} autofocus />
    <button type="submit">Save</button>
    <button type="button" onClick=${() => setText(null)}>Cancel</button>
  </form>`;
}

function Usage({ usage }) {
  if (!usage.requests) return null;
  const cost = usage.cost === null ? "" : ` · $${usage.cost.toFixed(4)}`;
  const tokens = `${usage.input.toLocaleString()} tokens in · ${usage.output.toLocaleString()} out`;
  return html`<span class="usage" title="Tokens of all model requests of this session">
    ${count(usage.requests, "request")} · ${tokens}${cost}
  </span>`;
}

function Facts({ detail, usage }) {
  const { status, metadata, parent_id: parent } = detail;
  return html`<p class="facts">
    <span class=${`status ${status}`}>${STATUS[status] ?? status}</span>
    ${sleepsFor(detail) && html`<span class="sleeps">${sleepsFor(detail)}</span>`}
    <span>${detail.agent}</span>
    ${detail.holder && html`<span>on ${detail.holder}</span>`}
    ${parent && html`<a href=${`#/s/${encodeURIComponent(parent)}`}>delegated by another session</a>`}
    ${metadata?.attached && html`<span class="badge" title="Its turns run only while someone is watching.">attached</span>`}
    ${metadata?.schedule && html`<a href="#/schedules">started by a schedule</a>`}
    ${detail.hold && html`<span class="badge">on hold</span>`}
    <${Usage} usage=${usage} />
  </p>`;
}

// A session without a title is shown with its first message.
function withTitle(detail, journal) {
  const first = journal.items.find((item) => item.type === "user")?.content;
  return detail && !detail.title && typeof first === "string" ? { ...detail, title: titleFrom(first) } : detail;
}

export function Session({ id, view, call, me, onDetail }) {
  const [life, setLife] = useState(0); // changes when the session was cleaned or restored, to reload it
  const { journal, link, reason } = useJournal(id, life);
  const [read, reread] = useDetail(id, journal.seq);
  const detail = withTitle(read, journal);
  const { queued, send } = useSent(id, journal);
  const [problem, setProblem] = useState(null);
  const [background, setBackground] = useState(false);
  const status = detail?.status ?? "idle";
  useEffect(() => {
    if (detail) onDetail(detail);
  }, [read, detail?.title]);
  const busy = BUSY.has(status) || journal.queue.size > 0;
  useEffect(() => {
    setBackground(false);
    setProblem(null);
  }, [id]);
  useEffect(() => {
    if (detail) document.title = `${status === "waiting" ? "● " : ""}${titleOf(detail)} · Holdfast`;
    if (detail && !BUSY.has(status)) setBackground(false);
  }, [read, detail?.title]);

  const before = useRef(null);
  useEffect(() => {
    if (!detail) return;
    if (before.current?.id === id && before.current.cleaned !== detail.cleaned_at) setLife((n) => n + 1);
    before.current = { id, cleaned: detail.cleaned_at };
  }, [read]);

  const act = (action, then = () => {}) => async () => {
    setProblem(null);
    try {
      await action(id);
      then();
      reread();
    } catch (error) {
      setProblem(error.message);
    }
  };
  const at = (name) => `#/s/${encodeURIComponent(id)}${name ? `/${name}` : ""}`;
  const tabs = [["", "Conversation"], ["timeline", "Timeline"], ["tool-calls", "Tool calls"], ["retention", "Retention"]];
  const closed = link === "gone" || ["cleaning", "cleaned", "moved"].includes(status);

  return html`<section class="session" aria-label="Session">
    <header>
      <a class="back" href="#/" aria-label="All sessions">←</a>
      <div class="head">
        ${detail ? html`<${Title} detail=${detail} onChanged=${reread} onProblem=${setProblem} />` : html`<h2>…</h2>`}
        ${detail && html`<${Facts} detail=${detail} usage=${journal.usage} />`}
      </div>
      <nav class="tabs" aria-label="Views of this session">
        ${tabs.map(
          ([name, label]) => html`<a href=${at(name)} aria-current=${view === name ? "page" : undefined}>${label}</a>`,
        )}
      </nav>
    </header>
    <${Link} link=${link} reason=${reason} />
    ${problem && html`<p class="banner bad" role="alert">${problem} <button type="button" class="quiet" onClick=${() => setProblem(null)}>Dismiss</button></p>`}
    ${detail?.problem && html`<p class="banner reconnecting" role="status">${detail.problem}</p>`}
    ${status === "failed" && html`<p class="banner bad" role="status">The last turn failed: ${plainly(detail.error ?? "")} <button type="button" class="quiet" title=${HINTS.dismiss} onClick=${act(api.dismiss)}>Dismiss</button></p>`}
    ${background && html`<p class="banner good" role="status">Running in the background. You can close this tab.</p>`}
    ${view === "timeline" && html`<${Timeline} id=${id} journal=${journal} version=${journal.version} />`}
    ${view === "tool-calls" && html`<${ToolCalls} id=${id} journal=${journal} />`}
    ${view === "retention" && html`<${Retention} key=${id} id=${id} detail=${detail} admin=${me.role === "admin"} onChanged=${reread} onReset=${() => setLife((n) => n + 1)} />`}
    ${view === "" && detail?.metadata?.framework && status !== "cleaned" && html`<${Foreign} key=${`${id}/${life}`} id=${id} framework=${detail.metadata.framework} active=${detail.active_at} holder=${detail.holder} />`}
    ${view === "" && !(detail?.metadata?.framework && status !== "cleaned") &&
    html`<${Conversation} key=${id} journal=${journal} version=${journal.version} queued=${queued} call=${call}>
        ${(journal.seq ? (detail?.approvals ?? []) : []).map(
          (call) => html`<${Approval} key=${`${call.call_id}/${call.digest}`} sessionId=${id} call=${call} failed=${journal.failures} onSent=${reread} />`,
        )}
        ${status === "cleaned" &&
        html`<section class="restore" aria-label="Cleaned">
          <h3>This session was cleaned</h3>
          <p>Its messages, tool calls and files were deleted on ${moment(detail.cleaned_at)}.</p>
          <${Restore} id=${id} onDone=${() => (reread(), setLife((n) => n + 1))} />
        </section>`}
        ${status !== "cleaned" && detail?.seq === 0 && journal.seq === 0 && !queued.length && html`<p class="empty">No messages yet.</p>`}
      <//>
      <footer>
        <div class="actions" role="group" aria-label="Actions">
          <button type="button" disabled=${!busy} title=${HINTS.stop} onClick=${act(api.interrupt)}>■ Stop</button>
          <button type="button" disabled=${status !== "running"} title=${HINTS.background} onClick=${act(api.background, () => setBackground(true))}>Background</button>
          <button type="button" disabled=${busy || closed || !journal.runs.size} title=${HINTS.undo} onClick=${act(api.undo)}>Undo</button>
          ${journal.retriable && html`<button type="button" disabled=${busy || closed} title=${HINTS.retry} onClick=${act((of) => api.retry(of, journal.retriable))}>Retry</button>`}
          ${journal.retriable && journal.undoable.size > 0 && html`<button type="button" disabled=${busy || closed} title=${HINTS.undoEffects} onClick=${act((of) => api.undoEffects(of, journal.retriable))}>Undo effects</button>`}
          <button type="button" disabled=${busy || closed || !journal.runs.size} title=${HINTS.compact} onClick=${act(api.compact)}>Compact</button>
          ${me.demo && html`<button type="button" class="kill" disabled=${!busy} title="Sends SIGKILL to the worker. Only in the demo." onClick=${act(api.killWorker)}>☠ Kill the worker</button>`}
        </div>
        ${status === "running" && html`<p class="hint"><strong>Stop</strong> ends this turn and keeps its results. With <strong>Background</strong>, it continues after you close this page.</p>`}
        <${Composer} key=${id} busy=${status === "running" || status === "queued"} disabled=${closed} onSend=${send} />
      </footer>`}
  </section>`;
}
