// What a session asks a person. An answer names the digest of the exact arguments it is about.
import { html, useState } from "./preact.js";
import { answer } from "./api.js";
import { pretty } from "./words.js";

export function Approval({ sessionId, asked, onSent }) {
  const [mode, setMode] = useState("ask"); // ask, deny, edit, sent
  const [feedback, setFeedback] = useState("");
  const [edited, setEdited] = useState(pretty(asked.arguments));
  const [problem, setProblem] = useState(null);

  async function send(approved, more = {}) {
    setProblem(null);
    const before = mode;
    setMode("sent");
    try {
      await answer(sessionId, { call_id: asked.call_id, digest: asked.digest, approved, ...more });
      onSent();
    } catch (error) {
      setProblem(error.message);
      setMode(before);
    }
  }

  function sendEdited(event) {
    event.preventDefault();
    let given;
    try {
      given = JSON.parse(edited);
    } catch (error) {
      setProblem(`The arguments are not JSON: ${error.message}`);
      return;
    }
    if (given === null || typeof given !== "object" || Array.isArray(given)) {
      setProblem("The arguments must be a JSON object.");
      return;
    }
    send(true, { arguments: given });
  }

  const deny = (event) => {
    event.preventDefault();
    send(false, feedback ? { feedback } : {});
  };

  return html`<section class="approval" aria-label=${`Approval of ${asked.tool}`}>
    <h3>May <code>${asked.tool}</code> be run?</h3>
    ${mode !== "edit" && html`<pre tabindex="0" aria-label="Arguments">${pretty(asked.arguments)}</pre>`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${mode === "ask" &&
    html`<div class="row">
      <button type="button" class="primary" onClick=${() => send(true)}>Approve</button>
      <button type="button" onClick=${() => setMode("deny")}>Deny…</button>
      <button type="button" onClick=${() => setMode("edit")}>Edit…</button>
    </div>`}
    ${mode === "deny" &&
    html`<form onSubmit=${deny}>
      <label>Reason, which the agent is told
        <input type="text" value=${feedback} onInput=${(event) => setFeedback(event.target.value)} autofocus />
      </label>
      <div class="row">
        <button type="submit" class="danger">Deny</button>
        <button type="button" onClick=${() => setMode("ask")}>Back</button>
      </div>
    </form>`}
    ${mode === "edit" &&
    html`<form onSubmit=${sendEdited}>
      <label>Arguments as JSON
        <textarea rows="6" spellcheck="false" value=${edited} onInput=${(event) => setEdited(event.target.value)}></textarea>
      </label>
      <p class="hint">Only tools that allow it accept other arguments.</p>
      <div class="row">
        <button type="submit" class="primary">Approve as edited</button>
        <button type="button" onClick=${() => setMode("ask")}>Back</button>
      </div>
    </form>`}
    ${mode === "sent" && html`<p class="hint" role="status">Answered. It goes on when a worker takes it.</p>`}
  </section>`;
}
