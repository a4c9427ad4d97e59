// Every tool call of a session and its outcome, unknown outcomes first.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { Long, Result } from "./conversation.js";
import { argumentsText, clock, lasting, outcome, pretty } from "./words.js";

const RUNS = 40;

function waits(effect) {
  return effect.state === "started" && ["approval", "external", "again"].includes(effect.result?.kind);
}

function stateOf(effect, journal, undone) {
  if (undone.has(`${effect.run_id}/${effect.call_id}`)) return "undone";
  if (effect.state === "completed") return "done";
  if (effect.state !== "started") return effect.state;
  if (waits(effect)) return "waiting";
  return journal.runs.get(effect.run_id)?.status === "running" ? "running" : "unknown";
}

const RANK = { unknown: 0, waiting: 1, running: 1 };

export function ToolCalls({ id, journal }) {
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
  const undos = (found ?? []).filter((effect) => effect.undoes && effect.state === "completed");
  const undone = new Set(undos.map((effect) => `${effect.run_id}/${effect.undoes}`));
  const entries = (found ?? []).map((effect) => ({ effect, state: stateOf(effect, journal, undone) }));
  entries.sort((one, other) => (RANK[one.state] ?? 2) - (RANK[other.state] ?? 2));
  return html`<div class="pane"><div class="page">
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${found !== null && !found.length && html`<p class="empty">No tool has been called yet.</p>`}
    <ul class="effects">
      ${entries.map(({ effect, state }) => html`<${Entry} key=${`${effect.run_id}/${effect.call_id}`} id=${id} effect=${effect} state=${state} call=${journal.callOf(effect.call_id)} onSettled=${read} />`)}
    </ul>
    ${journal.runs.size > RUNS && html`<p class="hint">Only the last ${RUNS} runs are shown.</p>`}
  </div></div>`;
}

function Entry({ id, effect, state, call, onSettled }) {
  const { label, meaning, className } = outcome(state);
  const result = effect.result?.content ?? call?.result;
  return html`<li class=${state === "unknown" ? "unresolved" : ""}>
    <details class="tool">
      <summary>
        <span class="tool-name">${effect.tool}</span>
        <span class="tool-brief">${effect.summary ?? ""}</span>
        ${effect.attempts > 1 && html`<span class="tool-time">${effect.attempts} attempts</span>`}
        <span class="tool-time">${clock(effect.started_at)}</span>
        ${effect.ended_at && effect.attempts > 0 && html`<span class="tool-time">${lasting(Date.parse(effect.ended_at) - Date.parse(effect.started_at))}</span>`}
        <span class=${`badge ${className}`} title=${meaning}>${label}</span>
      </summary>
      <div class="tool-body">
        <p class="hint">${meaning} Call <span class="mono">${effect.call_id}</span></p>
        ${call ? html`<${Long} text=${argumentsText(call.arguments)} label="arguments" />` : html`<p class="hint">Its arguments are no longer in the conversation.</p>`}
        ${state !== "waiting" && result !== undefined && result !== null && html`<${Result} value=${result} />`}
        ${call && html`<p><a href=${`#/s/${encodeURIComponent(id)}/call/${encodeURIComponent(call.id)}`}>Show in the conversation</a></p>`}
      </div>
    </details>
    ${effect.error && html`<p class="error">${effect.error}</p>`}
    ${state === "unknown" && html`<${Settle} effect=${effect} onSettled=${onSettled} />`}
  </li>`;
}

export function Settle({ effect, onSettled }) {
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
    <p>The worker stopped before the call ended. If you know the outcome, record it here.</p>
    <div class="row">
      <label class="check"><input type="radio" name=${`settle-${effect.call_id}`} checked=${happened === "yes"} onChange=${() => setHappened("yes")} /> It succeeded, with this result</label>
      <label class="check"><input type="radio" name=${`settle-${effect.call_id}`} checked=${happened === "no"} onChange=${() => setHappened("no")} /> It failed, for this reason</label>
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
