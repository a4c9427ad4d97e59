// A tool call that waits for a decision. The answer has the digest of the arguments that it is about.
import { html, useEffect, useState } from "./preact.js";
import { answer, failures } from "./api.js";
import { expiry, plainly, pretty } from "./words.js";

const EVERY = 1000;

// `failed` maps failed submissions to their reasons. Without it, the card loads them from the server.
export function Approval({ sessionId, call, failed = null, onSent }) {
  const [mode, setMode] = useState("choose"); // choose, deny, edit
  const [sent, setSent] = useState(null); // the id of the answer, or "" while it is being sent
  const [feedback, setFeedback] = useState("");
  const [edited, setEdited] = useState(pretty(call.arguments));
  const [problem, setProblem] = useState(null);

  async function send(approved, more = {}) {
    setProblem(null);
    setSent("");
    try {
      const submission = await answer(sessionId, { call_id: call.call_id, digest: call.digest, approved, ...more });
      setSent(submission.submission_id);
      onSent();
    } catch (error) {
      reject(error.message);
    }
  }

  function reject(reason) {
    setProblem(`The answer was rejected: ${plainly(reason)}`);
    setSent(null);
  }

  // A worker may reject the answer after the server has accepted it.
  useEffect(() => {
    if (sent && failed?.has(sent)) reject(failed.get(sent));
  });
  useEffect(() => {
    if (!sent || failed) return undefined;
    const check = async () => {
      const rejected = (await failures(sessionId).catch(() => [])).find((one) => one.submission_id === sent);
      if (rejected) reject(rejected.reason);
    };
    const timer = setInterval(check, EVERY);
    return () => clearInterval(timer);
  }, [sent, failed]);

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

  return html`<section class="approval" aria-label=${`Approval of ${call.tool}`}>
    ${call.external ? html`<h3>Waiting for the result of <code>${call.tool}</code></h3>` : html`<h3>Run <code>${call.tool}</code>?</h3>`}
    ${call.external && html`<p class="hint">This call runs outside. Its result arrives by itself; you can only deny it.</p>`}
    ${call.note && html`<p class="banner bad">${call.note}</p>`}
    ${call.origin && html`<p class="hint">Asked by <a href=${`#/s/${encodeURIComponent(call.origin.session_id)}`}>${call.origin.agents.join(" → ")}</a></p>`}
    ${call.deadline && html`<p class="hint">${expiry(call)}</p>`}
    ${mode !== "edit" && html`<pre tabindex="0" aria-label="Arguments">${pretty(call.arguments)}</pre>`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${sent !== null && html`<p class="hint" role="status">Answer sent. The session continues when a worker picks it up.</p>`}
    ${sent === null &&
    mode === "choose" &&
    html`<div class="row">
      ${!call.external && html`<button type="button" class="primary" onClick=${() => send(true)}>Approve</button>`}
      <button type="button" onClick=${() => setMode("deny")}>Deny…</button>
      ${!call.external && html`<button type="button" onClick=${() => setMode("edit")}>Edit…</button>`}
    </div>`}
    ${sent === null &&
    mode === "deny" &&
    html`<form onSubmit=${deny}>
      <label>Reason (shown to the agent)
        <input type="text" value=${feedback} onInput=${(event) => setFeedback(event.target.value)} autofocus />
      </label>
      <div class="row">
        <button type="submit" class="danger">Deny</button>
        <button type="button" onClick=${() => setMode("choose")}>Back</button>
      </div>
    </form>`}
    ${sent === null &&
    mode === "edit" &&
    html`<form onSubmit=${sendEdited}>
      <label>Arguments as JSON
        <textarea rows="6" spellcheck="false" value=${edited} onInput=${(event) => setEdited(event.target.value)}></textarea>
      </label>
      <p class="hint">The tool must allow edited arguments. If it does not, you can still approve or deny it.</p>
      <div class="row">
        <button type="submit" class="primary">Approve as edited</button>
        <button type="button" onClick=${() => setMode("choose")}>Back</button>
      </div>
    </form>`}
  </section>`;
}
