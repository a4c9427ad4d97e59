// The schedules: their next time, the outcome of the last one, and buttons that pause, resume and run them.
import { html, useCallback, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { moment, plainly } from "./words.js";

const EVERY = 2000;
const STATES = { queued: ["queued", "waiting"], claimed: ["running", "running"], waiting: ["waiting", "waiting"], done: ["done", "done"], failed: ["failed", "failed"], dead: ["failed", "failed"] };

function Next({ schedule }) {
  if (schedule.moved) return html`<span class="badge">moved</span>`;
  if (schedule.paused) return html`<span class="badge waiting">paused</span>`;
  return html`<time datetime=${schedule.next_at}>${moment(schedule.next_at)}</time>`;
}

function Last({ schedule }) {
  const [label, className] = STATES[schedule.last_state] ?? ["–", ""];
  return html`${schedule.problem
      ? html`<span class="error">${plainly(schedule.problem)}</span>`
      : html`<span class=${`badge ${className}`} title=${schedule.last_reason ?? undefined}>${label}</span>`}
    ${schedule.last_session_id && html` <a href=${`#/s/${encodeURIComponent(schedule.last_session_id)}`}>Open session</a>`}
    ${schedule.last_at && html` <time class="hint" datetime=${schedule.last_at}>${moment(schedule.last_at)}</time>`}`;
}

export function Schedules() {
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const [problem, setProblem] = useState(null);
  const read = useCallback(async () => {
    try {
      const { items } = await api.schedules();
      setFound(items.sort((one, other) => (one.next_at ?? "~").localeCompare(other.next_at ?? "~")));
      setTrouble(null);
    } catch (error) {
      setTrouble(error.message);
    }
  }, []);
  useEffect(() => {
    document.title = "Schedules · Holdfast";
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
  const act = (action) => async () => {
    setProblem(null);
    try {
      await action();
    } catch (error) {
      setProblem(error.message);
    }
    await read();
  };
  return html`<section class="pane wide-list" aria-label="Schedules">
    <div class="page">
    <a class="back" href="#/" aria-label="All sessions">←</a>
    <h2>Schedules</h2>
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Retrying…</p>`}
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${found !== null && !found.length && html`<p class="empty">There are no schedules. Create one with <code>holdfast schedule create</code>.</p>`}
    ${found !== null &&
    found.length > 0 &&
    html`<div class="scroll">
      <table>
        <thead><tr><th>schedule</th><th>times</th><th>next</th><th>last</th><th>actions</th></tr></thead>
        <tbody>
          ${found.map((schedule) => {
            const name = schedule.title || schedule.text.split("\n", 1)[0].slice(0, 80);
            return html`<tr key=${schedule.id}>
              <td data-label="schedule"><span title=${schedule.text}>${name}</span> <span class="hint">${schedule.agent}${schedule.session_id && html` · <a href=${`#/s/${encodeURIComponent(schedule.session_id)}`}>session</a>`}</span></td>
              <td data-label="times"><code>${schedule.cron}</code> <span class="hint">${schedule.timezone}</span></td>
              <td data-label="next"><${Next} schedule=${schedule} /></td>
              <td data-label="last"><${Last} schedule=${schedule} /></td>
              <td data-label="actions"><span class="row">
                <button type="button" disabled=${schedule.moved} aria-label=${`Run ${name} now`} onClick=${act(() => api.runSchedule(schedule.id))}>Run now</button>
                <button type="button" disabled=${schedule.moved} aria-label=${`${schedule.paused ? "Resume" : "Pause"} ${name}`} onClick=${act(() => api.changeSchedule(schedule.id, { paused: !schedule.paused }))}>${schedule.paused ? "Resume" : "Pause"}</button>
              </span></td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>`}
    </div>
  </section>`;
}
