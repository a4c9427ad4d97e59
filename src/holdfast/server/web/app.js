// The page shows the view in the address. The token is in a cookie that scripts cannot read.
import { html, render, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { Inbox } from "./inbox.js";
import { Notices } from "./notices.js";
import { useNotifications } from "./notifications.js";
import { Schedules } from "./schedules.js";
import { Usage } from "./usage.js";
import { Session } from "./session.js";
import { Sessions } from "./sessions.js";
import { Workers } from "./workers.js";

const ID = /^[A-Za-z0-9][A-Za-z0-9._:@=+~-]*$/;
const PROBLEMS = new Map([
  ["refused", "This token is unknown, expired or revoked."],
  ["foreign", "The link with the token was opened from another site. Copy it into the address bar, or paste the token here."],
  ["changed", "The server no longer accepts your token. It was restarted with a new one, or yours expired or was revoked. Your sessions are safe: sign in to see them."],
]);
const SIGNED_IN = "holdfast/signed-in"; // whether this browser was signed in before
const WAITING = 10_000;

function place() {
  const [name = "", given = "", view = "", rest = ""] = location.hash.replace(/^#\/?/, "").split("/");
  const id = decoded(given);
  if (name === "s" && ID.test(id)) {
    return { name, id, view: ["timeline", "tool-calls", "retention"].includes(view) ? view : "", call: view === "call" ? decoded(rest) : null };
  }
  return { name: ["inbox", "schedules", "notices", "usage", "workers", "sign-in"].includes(name) ? name : "", view: id };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return ""; // the address is not valid
  }
}

function SignIn({ reason, onDone }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(PROBLEMS.get(reason) ?? null);
  const send = async (event) => {
    event.preventDefault();
    try {
      await api.signIn(token.trim());
      onDone();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<main class="sign-in">
    <form onSubmit=${send}>
      <h1>Holdfast</h1>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <p>Sign in with a token. <code>holdfast serve</code> prints an address with one when it starts. <code>holdfast token create</code> creates more.</p>
      <label>Token
        <input type="password" autocomplete="current-password" required autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      </label>
      <button type="submit" class="primary">Sign in</button>
    </form>
  </main>`;
}

// The start page of the demo, with a button that starts a session.
function Demo() {
  const [problem, setProblem] = useState(null);
  const begin = (title) => async () => {
    try {
      const session = await api.createSession({ agent: "demo", title });
      await api.submit(session.id, { kind: "message", text: title, idempotency_key: api.newKey() });
      location.hash = `#/s/${encodeURIComponent(session.id)}`;
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<section class="welcome">
    <h1>Durable sessions</h1>
    <p>An agent prepares a release: it plans, runs commands, writes a line to a file, asks another agent for a review, draws a chart, and asks you for approval. Start it, then try to break it:</p>
    <p class="row">
      <button type="button" class="primary" onClick=${begin("Prepare a release")}>Prepare a release</button>
      <button type="button" onClick=${begin("Publish later")}>Publish later</button>
    </p>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <ol>
      <li><strong>Close this tab</strong> during a turn and open it again. The turn has continued.</li>
      <li><strong>Kill the worker</strong> with the button below the conversation, which sends SIGKILL. Another worker continues from the recorded state, and the line is in the file only once.</li>
      <li><strong>Export, clean, restore</strong> in the view <em>Retention</em>: everything is deleted, and then restored byte for byte.</li>
    </ol>
    <p class="hint"><strong>Publish later</strong> is the second act: the agent sleeps without a process, wakes up, and asks you a question. Do not answer, and it takes the default.</p>
    <p class="hint">Keys: <kbd>/</kbd> search, <kbd>n</kbd> new session.</p>
  </section>`;
}

function Welcome({ demo }) {
  useEffect(() => {
    document.title = "Holdfast";
  }, []);
  if (demo) return html`<${Demo} />`;
  return html`<section class="welcome">
    <h1>Durable sessions</h1>
    <p>Select a session or create one. Then try to break it:</p>
    <ol>
      <li><strong>Close this tab</strong> during a turn and open it again. The turn has continued.</li>
      <li><strong>Kill the worker</strong> during a turn. Another worker continues from the recorded state, and repeats no call that may have happened.</li>
      <li><strong>Restart the server.</strong> This page reconnects automatically, without gaps or duplicates.</li>
    </ol>
    <p class="hint">Keys: <kbd>/</kbd> search, <kbd>n</kbd> new session.</p>
  </section>`;
}

// The number of sessions that wait for a person. It is updated when the open session starts or stops waiting.
function useWaiting(me, current) {
  const [number, setNumber] = useState("");
  const waits = ["waiting", "failed"].includes(current?.status);
  useEffect(() => {
    if (me === null) return undefined;
    const read = () => document.hidden || api.inbox().then((page) => setNumber(page.items.length ? `${page.items.length}${page.more ? "+" : ""}` : ""), () => {});
    read();
    const timer = setInterval(read, WAITING);
    return () => clearInterval(timer);
  }, [me, current?.id, waits]);
  return number;
}

function App() {
  const [here, setHere] = useState(place());
  const [current, setCurrent] = useState(null);
  const [me, setMe] = useState(null);
  const [out, setOut] = useState(here.name === "sign-in");
  const [why, setWhy] = useState(here.name === "sign-in" ? here.view : null);
  const [trouble, setTrouble] = useState(null);
  const waiting = useWaiting(out ? null : me, current);
  const notifications = useNotifications(out ? null : me);

  useEffect(() => {
    const onHash = () => setHere(place());
    addEventListener("hashchange", onHash);
    api.onUnauthenticated(() => {
      if (localStorage.getItem(SIGNED_IN)) setWhy("changed");
      setOut(true);
    });
    return () => removeEventListener("hashchange", onHash);
  }, []);

  useEffect(() => {
    if (out) return undefined;
    let timer = 0;
    const load = () =>
      api.me().then(
        (found) => {
          setMe(found);
          localStorage.setItem(SIGNED_IN, "yes");
          setTrouble(null);
        },
        (error) => {
          if (error.status === 401) return;
          setTrouble(error.message);
          timer = setTimeout(load, 1000);
        },
      );
    load();
    return () => clearTimeout(timer);
  }, [out]);

  const leave = async () => {
    await api.signOut().catch(() => {});
    localStorage.removeItem(SIGNED_IN);
    setWhy(null);
    setMe(null);
    setOut(true);
  };

  if (out) {
    const enter = () => {
      if (location.hash.startsWith("#/sign-in")) location.hash = "#/";
      setOut(false);
    };
    return html`<${SignIn} key=${why} reason=${why} onDone=${enter} />`;
  }
  if (me === null) return html`<p class="banner" role="status">${trouble ? `${trouble} Retrying…` : "Loading…"}</p>`;
  const deep = here.name !== "";
  return html`<div class=${`frame${deep ? " deep" : ""}`}>
    <aside>
      <header>
        <a class="brand" href="#/"><img src="/static/icon.svg" alt="" width="22" height="22" /> Holdfast</a>
        <nav aria-label="Pages">
          <a href="#/inbox" aria-current=${here.name === "inbox" ? "page" : undefined}>Inbox${waiting && html` <span class="number">${waiting}</span>`}</a>
          <a href="#/schedules" aria-current=${here.name === "schedules" ? "page" : undefined}>Schedules</a>
          <a href="#/notices" aria-current=${here.name === "notices" ? "page" : undefined}>Notices</a>
          <a href="#/usage" aria-current=${here.name === "usage" ? "page" : undefined}>Usage</a>
          <a href="#/workers" aria-current=${here.name === "workers" ? "page" : undefined}>Workers</a>
        </nav>
      </header>
      <${Sessions} chosen=${here.id} agents=${me.agents} current=${current?.id === here.id ? current : null} />
      <footer>Signed in as ${me.owner} <button type="button" class="quiet" onClick=${leave}>Sign out</button></footer>
    </aside>
    <main>
      ${here.name === "s" && html`<${Session} id=${here.id} view=${here.view} call=${here.call} me=${me} onDetail=${setCurrent} />`}
      ${here.name === "inbox" && html`<${Inbox} />`}
      ${here.name === "schedules" && html`<${Schedules} />`}
      ${here.name === "notices" && html`<${Notices} chosen=${here.view} me=${me} notifications=${notifications} />`}
      ${here.name === "usage" && html`<${Usage} view=${here.view} me=${me} />`}
      ${here.name === "workers" && html`<${Workers} agents=${me.agents} />`}
      ${here.name === "" && html`<${Welcome} demo=${me.demo} />`}
    </main>
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
