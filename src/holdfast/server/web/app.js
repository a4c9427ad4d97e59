// The page: what the address names is shown. Nothing here knows a token; the browser keeps it in a cookie.
import { html, render, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { Session } from "./session.js";
import { Sessions } from "./sessions.js";
import { Workers } from "./workers.js";

const ID = /^[A-Za-z0-9][A-Za-z0-9._:@=+~-]*$/;
const PROBLEMS = new Map([
  ["refused", "That token is not known, has expired or was revoked."],
  ["foreign", "The link with the token was opened from another site. Copy it into the address bar, or paste the token here."],
]);

function place() {
  const [name = "", given = "", view = ""] = location.hash.replace(/^#\/?/, "").split("/");
  const id = decoded(given);
  if (name === "s" && ID.test(id)) return { name, id, view: ["timeline", "ledger", "retention"].includes(view) ? view : "" };
  return { name: ["workers", "sign-in"].includes(name) ? name : "", view: id };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return ""; // somebody wrote this address by hand
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
      <p>Who are you? <code>holdfast serve</code> prints an address with a token; <code>holdfast token create</code> makes more.</p>
      <label>Token
        <input type="password" autocomplete="current-password" required autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      </label>
      ${problem && html`<p class="error" role="alert">${problem}</p>`}
      <button type="submit" class="primary">Come in</button>
    </form>
  </main>`;
}

// In the demo a newcomer is one button away from something to lose.
function Demo() {
  const [problem, setProblem] = useState(null);
  const begin = async () => {
    try {
      const session = await api.createSession({ agent: "demo", title: "A release" });
      await api.submit(session.id, { kind: "message", text: "prepare a release", idempotency_key: api.newKey() });
      location.hash = `#/s/${encodeURIComponent(session.id)}`;
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<section class="welcome">
    <h1>Sessions that hold</h1>
    <p>An agent is about to prepare a release: it plans, runs commands, writes a line into a file, asks a colleague, draws, and asks you. Let it begin, then try to lose it:</p>
    <p><button type="button" class="primary" onClick=${begin}>Prepare a release</button></p>
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    <ol>
      <li><strong>Close this tab</strong> in mid-turn and come back. The turn went on without you.</li>
      <li><strong>Kill the worker</strong> with the button beneath the conversation: it really sends SIGKILL. Another goes on from what is on record, and the line is in its file once.</li>
      <li><strong>Export, clean, rehydrate</strong> in the view <em>Retention</em>: all of it goes, and comes back byte for byte.</li>
    </ol>
    <p class="hint">Keys: <kbd>/</kbd> searches, <kbd>n</kbd> makes a new session.</p>
  </section>`;
}

function Welcome({ demo }) {
  useEffect(() => {
    document.title = "Holdfast";
  }, []);
  if (demo) return html`<${Demo} />`;
  return html`<section class="welcome">
    <h1>Sessions that hold</h1>
    <p>Choose a session, or make a new one. Then try to lose it:</p>
    <ol>
      <li><strong>Close this tab</strong> in mid-turn and come back. The turn went on without you.</li>
      <li><strong>Kill the worker</strong> in mid-turn. Another goes on from what is on record, and repeats nothing blindly.</li>
      <li><strong>Restart the server.</strong> This page reconnects by itself, without a gap or a duplicate.</li>
    </ol>
    <p class="hint">Keys: <kbd>/</kbd> searches, <kbd>n</kbd> makes a new session.</p>
  </section>`;
}

function App() {
  const [here, setHere] = useState(place());
  const [me, setMe] = useState(null);
  const [out, setOut] = useState(here.name === "sign-in");
  const [trouble, setTrouble] = useState(null);

  useEffect(() => {
    const onHash = () => setHere(place());
    addEventListener("hashchange", onHash);
    api.onRefused(() => setOut(true));
    return () => removeEventListener("hashchange", onHash);
  }, []);

  useEffect(() => {
    if (out) return undefined;
    let timer = 0;
    const ask = () =>
      api.me().then(
        (found) => {
          setMe(found);
          setTrouble(null);
        },
        (error) => {
          if (error.status === 401) return;
          setTrouble(error.message);
          timer = setTimeout(ask, 1000);
        },
      );
    ask();
    return () => clearTimeout(timer);
  }, [out]);

  const leave = async () => {
    await api.signOut().catch(() => {});
    setMe(null);
    setOut(true);
  };

  if (out) {
    const enter = () => {
      if (location.hash.startsWith("#/sign-in")) location.hash = "#/";
      setOut(false);
    };
    return html`<${SignIn} reason=${here.name === "sign-in" ? here.view : null} onDone=${enter} />`;
  }
  if (me === null) return html`<p class="banner" role="status">${trouble ? `${trouble} Trying again.` : "One moment…"}</p>`;
  const deep = here.name === "s" || here.name === "workers";
  return html`<div class=${`frame${deep ? " deep" : ""}`}>
    <aside>
      <header>
        <a class="brand" href="#/"><img src="/static/icon.svg" alt="" width="22" height="22" /> Holdfast</a>
        <nav aria-label="Pages">
          <a href="#/workers" aria-current=${here.name === "workers" ? "page" : undefined}>Workers</a>
          <button type="button" class="quiet" onClick=${leave} title=${`You are ${me.owner}`}>Sign out</button>
        </nav>
      </header>
      <${Sessions} chosen=${here.id} agents=${me.agents} />
    </aside>
    <main>
      ${here.name === "s" && html`<${Session} id=${here.id} view=${here.view} me=${me} />`}
      ${here.name === "workers" && html`<${Workers} />`}
      ${here.name === "" && html`<${Welcome} demo=${me.demo} />`}
    </main>
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
