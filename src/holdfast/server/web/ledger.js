// The ledger: every tool call and what came of it; those that nobody knows about first.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { clock, lasting, pretty } from "./words.js";

const RUNS = 40;

function waits(effect) {
  return effect.state === "started" && ["approval", "external", "again"].includes(effect.result?.kind);
}

export function Ledger({ id, journal }) {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const runs = [...journal.runs.keys()].slice(-RUNS);
  const read = async () => {
    try {
      const pages = await Promise.all(runs.map((run) => api.effects(run)));
      setFound(pages.flatMap((page) => page.items));
      setProblem(null);
    } catch (error) {
      setProblem(error.message);
    }
  };
  useEffect(() => {
    const timer = setTimeout(read, 150);
    return () => clearTimeout(timer);
  }, [id, journal.seq]);
  const open = (effect) => effect.state === "started" && !waits(effect);
  const running = (effect) => open(effect) && journal.runs.get(effect.run_id)?.status === "running";
  const rank = (effect) => (open(effect) && !running(effect) ? 0 : effect.state === "started" ? 1 : 2);
  const ordered = (found ?? []).toSorted((one, other) => rank(one) - rank(other));
  return html`<div class="pane">
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${found !== null && !found.length && html`<p class="empty">No tool was called yet.</p>`}
    <ul class="effects">
      ${ordered.map(
        (effect) => html`<li key=${`${effect.run_id}/${effect.call_id}`} class=${rank(effect) === 0 ? "unresolved" : ""}>
          <div class="row">
            <span class="tool-name">${effect.tool}</span>
            <span class=${`badge ${rank(effect) === 0 ? "unknown" : effect.state}`}>
              ${rank(effect) === 0 ? "outcome unknown" : waits(effect) ? "waits" : running(effect) ? "running" : effect.state}
            </span>
            ${effect.attempts > 1 && html`<span class="hint">${effect.attempts} attempts</span>`}
            <span class="hint">${clock(effect.started_at)}</span>
            ${effect.ended_at && effect.attempts > 0 && html`<span class="hint">${lasting(Date.parse(effect.ended_at) - Date.parse(effect.started_at))}</span>`}
          </div>
          <p class="hint mono">${effect.call_id}${effect.summary ? ` · ${effect.summary}` : ""}</p>
          ${effect.error && html`<p class="error">${effect.error}</p>`}
          ${rank(effect) === 0 && html`<${Settle} effect=${effect} onSettled=${read} />`}
        </li>`,
      )}
    </ul>
    ${journal.runs.size > RUNS && html`<p class="hint">Of the last ${RUNS} runs.</p>`}
  </div>`;
}

function Settle({ effect, onSettled }) {
  const [happened, setHappened] = useState("yes");
  const [text, setText] = useState("");
  const [problem, setProblem] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    try {
      await api.settle(effect.run_id, effect.call_id, happened === "yes" ? { result: parsed(text) } : { error: text });
      onSettled();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<form class="settle" onSubmit=${send}>
    <p>It was begun and never seen to end. If you know what came of it, say so.</p>
    <div class="row">
      <label class="check"><input type="radio" name=${`settle-${effect.call_id}`} checked=${happened === "yes"} onChange=${() => setHappened("yes")} /> It was done, with this result</label>
      <label class="check"><input type="radio" name=${`settle-${effect.call_id}`} checked=${happened === "no"} onChange=${() => setHappened("no")} /> It failed, because</label>
    </div>
    <div class="row">
      <input type="text" required aria-label=${happened === "yes" ? "Result" : "Reason"} value=${text} onInput=${(event) => setText(event.target.value)} />
      <button type="submit">Settle</button>
    </div>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
  </form>`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return pretty(text);
  }
}
