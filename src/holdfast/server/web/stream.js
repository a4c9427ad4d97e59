// The live feed of a session: every event once and in order, even if the connection breaks.
import { eventsOf, signalUnauthenticated } from "./api.js";

const SILENCE = 40_000; // the server sends something every 15 s
const LONGEST = 8_000;
const RESTORED = "The server was restored from a backup that lacks some of these events. Reload the page.";

// Follows a session, and returns a function that stops it. `listener` has `batch(entries)`, for events and `{ draft }` in order, and
// `state(name, reason)`; the name is connecting, live, reconnecting, gone or refused.
export function follow(sessionId, after, listener) {
  let stopped = false;
  let seq = after;
  let wake = () => {};
  let control = new AbortController();

  async function connect() {
    control = new AbortController();
    let watchdog = setTimeout(() => control.abort(), SILENCE);
    try {
      const response = await fetch(eventsOf(sessionId), {
        headers: { accept: "text/event-stream", "last-event-id": String(seq) },
        signal: control.signal,
        cache: "no-store",
      });
      if (!response.ok) return await rejection(response);
      listener.state("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return "again";
        clearTimeout(watchdog);
        watchdog = setTimeout(() => control.abort(), SILENCE);
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        const ended = take(blocks);
        if (ended !== null) return ended;
      }
    } finally {
      clearTimeout(watchdog);
      control.abort();
    }
  }

  function take(blocks) {
    const entries = [];
    let ended = null;
    for (const block of blocks) {
      const found = parse(block);
      if (found === null) continue;
      if (found.kind === "draft") entries.push({ draft: found.data });
      else if (found.kind === "end") ended = found.data.reason === "erased" ? "gone" : "again";
      else if (found.data.seq === seq + 1) {
        seq = found.data.seq;
        entries.push(found.data);
      } else if (found.data.seq > seq) ended = "again"; // a gap: reconnect from the last event
    }
    if (!stopped && entries.length) listener.batch(entries);
    return ended;
  }

  async function rejection(response) {
    if (response.status === 401) {
      signalUnauthenticated();
      return "refused";
    }
    if (response.status >= 500 || response.status === 429) return "again";
    const body = await response.json().catch(() => ({}));
    const reason = body.error?.code === "event_not_found" ? RESTORED : body.error?.message;
    listener.state("gone", reason ?? "This session cannot be read.");
    return "gone";
  }

  async function run() {
    listener.state("connecting");
    let pause = 300;
    while (!stopped) {
      const before = seq;
      const began = Date.now();
      let outcome = "again";
      try {
        outcome = await connect();
      } catch {
        // the connection broke: reconnect below
      }
      if (stopped || outcome === "refused") return;
      if (outcome === "gone") {
        listener.state("gone");
        return;
      }
      pause = seq > before || Date.now() - began > 5_000 ? 300 : Math.min(pause * 2, LONGEST);
      listener.state("reconnecting");
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, pause * (0.5 + Math.random() / 2));
      });
    }
  }

  const hurry = () => wake();
  addEventListener("online", hurry);
  run();
  return () => {
    stopped = true;
    removeEventListener("online", hurry);
    control.abort();
    wake();
  };
}

function parse(block) {
  let kind = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(line[at + 1] === " " ? at + 2 : at + 1);
    if (name === "event") kind = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { kind, data: JSON.parse(data.join("\n")) } : null;
}
