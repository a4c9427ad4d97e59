// Subscriptions of webhooks: create, pause, test, rotate and delete them, and send their deliveries again.
import { html, useCallback, useEffect, useRef, useState } from "./preact.js";
import * as api from "./api.js";
import { Deliveries } from "./deliveries.js";
import { Notifications } from "./notifications.js";
import { moment } from "./words.js";

const EVERY = 2000;
const KINDS = {
  waiting: "A session waits for a person",
  done: "A turn ended",
  failed: "A turn failed",
  given_up: "A turn was given up after several attempts",
  budget_reached: "A session waits for a budget",
  retention_due: "Retention will delete a session",
  worker_lost: "A worker was lost",
};

// The names in a field, separated by commas.
const names = (text) => text.split(",").map((name) => name.trim()).filter(Boolean);

function State({ subscription }) {
  const state = subscription.paused ? "paused" : subscription.problem ? "failing" : "active";
  const className = { paused: "waiting", failing: "failed", active: "done" }[state];
  return html`<span class=${`badge ${className}`}>${state}</span>${subscription.problem && html` <span class="error">${subscription.problem}</span>`}`;
}

// For which sessions a subscription is.
function about({ everyone, owner, agents, sessions }) {
  const limits = [agents.length && `agents: ${agents.join(", ")}`, sessions.length && `sessions: ${sessions.join(", ")}`];
  return [everyone ? "everyone" : owner, ...limits].filter(Boolean).join(" · ");
}

// The secret, which the server does not show again.
function Secret({ url, secret, onClose }) {
  const box = useRef(null);
  const [copied, setCopied] = useState(null);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(secret);
      setCopied("Copied.");
    } catch {
      setCopied("The browser does not allow copying. Select the text instead.");
    }
  };
  return html`<dialog ref=${box} onClose=${onClose} aria-label="Secret">
    <h2>Secret</h2>
    <p>Verify the signatures of webhooks to <code>${url}</code> with this secret. Save it now: it is not shown again.</p>
    <p><code class="secret">${secret}</code></p>
    <p class="row">
      <button type="button" class="primary" onClick=${copy}>Copy</button>
      <button type="button" onClick=${() => box.current.close()}>Close</button>
      <span class="hint" role="status">${copied}</span>
    </p>
  </dialog>`;
}

function Deletion({ url, onDelete, onClose }) {
  const box = useRef(null);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  const remove = () => {
    box.current.close();
    onDelete();
  };
  return html`<dialog ref=${box} onClose=${onClose} aria-label="Delete the subscription">
    <h2>Delete the subscription?</h2>
    <p>Nothing more is sent to <code>${url}</code>. Its secret and its deliveries are deleted, including those that are pending.</p>
    <p class="row">
      <button type="button" class="danger" onClick=${remove}>Delete</button>
      <button type="button" onClick=${() => box.current.close()}>Cancel</button>
    </p>
  </dialog>`;
}

function Form({ isAdmin, onCreated }) {
  const [everyone, setEveryone] = useState(false);
  const [problem, setProblem] = useState(null);
  const create = async (event) => {
    event.preventDefault();
    const form = event.target;
    const given = new FormData(form);
    const kinds = given.getAll("kind");
    setProblem(null);
    if (!kinds.length) return setProblem("Select at least one kind of notice.");
    try {
      const created = await api.createSubscription({
        url: given.get("url").trim(),
        kinds,
        agents: names(given.get("agents")),
        sessions: names(given.get("sessions")),
        content: given.has("content"),
        everyone,
      });
      form.reset();
      setEveryone(false);
      await onCreated(created);
    } catch (error) {
      setProblem(error.message);
    }
  };
  const kinds = Object.entries(KINDS).filter(([kind]) => kind !== "worker_lost" || everyone);
  return html`<form class="setting" aria-label="Subscribe a webhook" onSubmit=${create}>
    <h3>Subscribe a webhook</h3>
    <label>URL of the webhook <input name="url" type="url" required maxlength="2048" placeholder="https://example.com/holdfast" autocomplete="off" /></label>
    <fieldset>
      <legend>Notices</legend>
      ${kinds.map(([kind, label]) => html`<label key=${kind} class="check"><input type="checkbox" name="kind" value=${kind} /> ${label}</label>`)}
    </fieldset>
    <div class="row">
      <label class="wide">Only these agents <input name="agents" placeholder="all; separate names with commas" autocomplete="off" /></label>
      <label class="wide">Only these sessions <input name="sessions" placeholder="all; separate ids with commas" autocomplete="off" /></label>
    </div>
    <label class="check"><input type="checkbox" name="content" /> Include texts: titles, questions, output and reasons of failures</label>
    ${isAdmin && html`<label class="check"><input type="checkbox" checked=${everyone} onChange=${(event) => setEveryone(event.target.checked)} /> For the sessions of everyone</label>`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <button class="primary">Subscribe</button>
  </form>`;
}

function Row({ subscription, mayWrite, act, onSecret, onDelete }) {
  const { id, url, kinds, paused } = subscription;
  return html`<tr>
    <td data-label="webhook"><div><a class="address" href=${`#/notices/${encodeURIComponent(id)}`}>${url}</a>
      <div class="hint">${about(subscription)}${subscription.content ? " · with texts" : ""} · <time datetime=${subscription.created_at}>${moment(subscription.created_at)}</time></div></div></td>
    <td data-label="notices"><div>${kinds.map((kind) => html`<span key=${kind} class="badge" title=${KINDS[kind]}>${kind}</span> `)}</div></td>
    <td data-label="state"><div><${State} subscription=${subscription} /></div></td>
    ${mayWrite &&
    html`<td data-label="actions"><span class="row">
      <button type="button" aria-label=${`${paused ? "Resume" : "Pause"} ${url}`} onClick=${act(() => api.changeSubscription(id, { paused: !paused }))}>${paused ? "Resume" : "Pause"}</button>
      <button type="button" disabled=${paused} aria-label=${`Send a test to ${url}`} onClick=${act(async () => {
        await api.testSubscription(id);
        location.hash = `#/notices/${encodeURIComponent(id)}`;
      })}>Test</button>
      <button type="button" aria-label=${`Rotate the secret of ${url}`} onClick=${act(async () => onSecret(await api.rotateSecret(id)))}>Rotate secret</button>
      <button type="button" aria-label=${`Delete ${url}`} onClick=${() => onDelete(subscription)}>Delete</button>
    </span></td>`}
  </tr>`;
}

// `chosen` is the id of the subscription whose deliveries are shown.
export function Notices({ chosen, me, notifications }) {
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const [problem, setProblem] = useState(null);
  const [secret, setSecret] = useState(null);
  const [deleting, setDeleting] = useState(null);
  const read = useCallback(async () => {
    try {
      setFound((await api.subscriptions()).items);
      setTrouble(null);
    } catch (error) {
      setTrouble(error.message);
    }
  }, []);
  useEffect(() => {
    document.title = "Notices · Holdfast";
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
  const onCreated = (created) => {
    setSecret(created);
    return read();
  };
  const remove = act(async () => {
    await api.deleteSubscription(deleting.id);
    if (chosen === deleting.id) location.hash = "#/notices";
  });
  const mayWrite = me.scopes.includes("write");
  const subscription = found?.find(({ id }) => id === chosen);
  return html`<section class="pane wide-list" aria-label="Notices">
    <div class="page">
    <a class="back" href="#/" aria-label="All sessions">←</a>
    <h2>Notices</h2>
    <${Notifications} ...${notifications} />
    <h3>Webhooks</h3>
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Retrying…</p>`}
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${found !== null && !found.length && html`<p class="empty">There are no subscriptions.</p>`}
    ${found !== null &&
    found.length > 0 &&
    html`<div class="scroll">
      <table aria-label="Subscriptions">
        <thead><tr><th>webhook</th><th>notices</th><th>state</th>${mayWrite && html`<th>actions</th>`}</tr></thead>
        <tbody>
          ${found.map((each) => html`<${Row} key=${each.id} subscription=${each} mayWrite=${mayWrite} act=${act} onSecret=${setSecret} onDelete=${setDeleting} />`)}
        </tbody>
      </table>
    </div>
    ${!chosen && html`<p class="hint">Select a webhook to see its deliveries.</p>`}`}
    ${subscription && html`<${Deliveries} key=${chosen} subscription=${subscription} mayWrite=${mayWrite} />`}
    ${chosen && found !== null && !subscription && html`<p class="empty">This subscription does not exist.</p>`}
    ${mayWrite && html`<${Form} isAdmin=${me.role === "admin"} onCreated=${onCreated} />`}
    ${secret && html`<${Secret} key=${secret.secret} url=${secret.url} secret=${secret.secret} onClose=${() => setSecret(null)} />`}
    ${deleting && html`<${Deletion} url=${deleting.url} onDelete=${remove} onClose=${() => setDeleting(null)} />`}
    </div>
  </section>`;
}
