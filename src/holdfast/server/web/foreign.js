// The conversation in a session of another framework. It is read again when the session has changed.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { Long } from "./conversation.js";
import { Markdown } from "./markdown.js";
import { count, pretty } from "./words.js";

const SHOWN = 200; // entries at first; earlier ones on demand

export function Foreign({ id, framework, active, holder }) {
  const [entries, setEntries] = useState(null);
  const [problem, setProblem] = useState(null);
  const [shown, setShown] = useState(SHOWN);
  useEffect(() => {
    let stopped = false;
    api.conversation(id).then(
      (found) => stopped || (setEntries(found.items), setProblem(null)),
      (error) => stopped || setProblem(error.message),
    );
    return () => (stopped = true);
  }, [id, active, holder]); // the last writes of a holder do not change the time of the last activity
  const hidden = Math.max(0, (entries?.length ?? 0) - shown);
  return html`<div class="conversation" tabindex="0" role="log" aria-label="Conversation"><div class="column">
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${entries && html`<p class="hint">Stored by ${framework}: ${count(entries.length, "message")}.</p>`}
    ${hidden > 0 && html`<button type="button" class="quiet earlier" onClick=${() => setShown(4 * shown)}>Show earlier (${hidden.toLocaleString()} more)</button>`}
    ${(entries ?? []).slice(-shown).map((entry) => html`<${Entry} key=${entry.key} entry=${entry} />`)}
  </div></div>`;
}

const LABELS = { user: "User message", assistant: "Agent message", system: "System message" };

function Entry({ entry }) {
  const { role, text, body } = entry;
  if (!text || !LABELS[role]) {
    const whole = text || pretty(body);
    return html`<details class="tool">
      <summary><span class="tool-name">${role}</span> <span class="tool-brief">${whole.replace(/\s+/g, " ").slice(0, 90)}</span></summary>
      <${Long} text=${whole} label=${role} />
    </details>`;
  }
  return html`<article class=${role === "user" ? "user" : "answer"} aria-label=${LABELS[role]}><${Markdown} text=${text} /></article>`;
}
