import type { DraftText, EventInfo } from "./models.js";
import { Backoff, type Transport } from "./transport.js";

/** Milliseconds without a byte before a connection counts as lost. The server sends comments more often than that. */
const SILENCE_MS = 60_000;

/** One entry in the journal of a session. `seq` is its number; `payload` depends on the kind. */
export interface SessionEvent extends EventInfo {
  payload: Record<string, unknown>;
}

/** Yield every event after number `after` exactly once, past and future, and the drafts between them. Reconnects until the session is erased. */
export async function* follow(
  transport: Transport,
  path: string,
  after: number,
  signal?: AbortSignal,
): AsyncGenerator<SessionEvent | DraftText, void, undefined> {
  const retry = new Backoff();
  for (;;) {
    let lost: unknown;
    const blocks = read(transport, path, after, signal);
    try {
      for await (const { kind, data } of blocks) {
        retry.reset();
        const value = (await transport.parse(data)) as any;
        if (kind === "end") {
          if (value.reason === "erased") return;
          break;
        }
        if (kind !== "draft") {
          if (value.seq <= after) continue;
          after = value.seq;
        }
        yield value;
      }
    } catch (error) {
      lost = error;
    }
    await retry.pause(lost, signal);
  }
}

interface Block {
  kind: string;
  data: string;
}

/** Yield the blocks of one connection. */
async function* read(
  transport: Transport,
  path: string,
  after: number,
  signal?: AbortSignal,
): AsyncGenerator<Block, void, undefined> {
  const connection = new AbortController();
  const leave = () => connection.abort(signal?.reason);
  let silence: ReturnType<typeof setTimeout> | undefined;
  const listen = () => {
    clearTimeout(silence);
    silence = setTimeout(() => connection.abort(), SILENCE_MS);
  };
  signal?.throwIfAborted();
  signal?.addEventListener("abort", leave, { once: true });
  try {
    listen();
    const headers = { accept: "text/event-stream" };
    const open = { headers, query: { after }, signal: connection.signal };
    // Only the caller's own signal ends the stream. A silent connection was lost.
    const response = await transport.reached(() => transport.open("GET", path, open), signal);
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    let kind = "message";
    let lines: string[] = [];
    let rest = "";
    for (;;) {
      const { done, value } = await transport.reached(() => reader.read(), signal);
      if (done) return;
      listen();
      const pieces = (rest + value).split("\n");
      rest = pieces.pop()!;
      for (const piece of pieces) {
        const line = piece.endsWith("\r") ? piece.slice(0, -1) : piece;
        if (line.startsWith("event:")) kind = line.slice(6).trimStart();
        else if (line.startsWith("data:")) lines.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && lines.length > 0) {
          yield { kind, data: lines.join("\n") };
          [kind, lines] = ["message", []];
        }
      }
    }
  } finally {
    clearTimeout(silence);
    signal?.removeEventListener("abort", leave);
    connection.abort();
  }
}
