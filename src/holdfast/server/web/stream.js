// The live feed of a session: every event once and in order, however often the connection breaks.
import { eventsOf, tellRefused } from "./api.js";

const SILENCE = 40_000; // the server says something every 15 s
const LONGEST = 8_000;
const RESTORED = "The server was restored from a backup and lacks some of what is shown here. Reload the page.";

// Follows a session; returns what stops it. `told` gets `batch(entries)`, events and `{ draft }` in their order, and `state(name, reason)`, where the
// name is connecting, live, reconnecting, gone or refused.
export function follow(sessionId, after, told) {
  let stopped = false;
  let seq = after;
  let wake = () => {};
  let control = new AbortController();

  async function connect() {
    control = new AbortController();
    let watchdog = setTimeout(() => control.abort(), SILENCE);
    try {
      const answer = await fetch(eventsOf(sessionId), {
        headers: { accept: "text/event-stream", "last-event-id": String(seq) },
        signal: control.signal,
        cache: "no-store",
      });
      if (!answer.ok) return await refusal(answer);
      told.state("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
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
      } else if (found.data.seq > seq) ended = "again"; // a hole: ask again from where we are
    }
    if (!stopped && entries.length) told.batch(entries);
    return ended;
  }

  async function refusal(answer) {
    if (answer.status === 401) {
      tellRefused();
      return "refused";
    }
    if (answer.status >= 500 || answer.status === 429) return "again";
    const said = await answer.json().catch(() => ({}));
    const reason = said.error?.code === "not_yet" ? RESTORED : said.error?.message;
    told.state("gone", reason ?? "This session cannot be read.");
    return "gone";
  }

  async function run() {
    told.state("connecting");
    let pause = 300;
    while (!stopped) {
      const before = seq;
      const began = Date.now();
      let outcome = "again";
      try {
        outcome = await connect();
      } catch {
        // the connection broke: it is made again below
      }
      if (stopped || outcome === "refused") return;
      if (outcome === "gone") {
        told.state("gone");
        return;
      }
      pause = seq > before || Date.now() - began > 5_000 ? 300 : Math.min(pause * 2, LONGEST);
      told.state("reconnecting");
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
