// The TypeScript client against a real server and worker, whose address and token are in the environment.
import assert from "node:assert/strict";
import { createServer, connect, type AddressInfo, type Socket } from "node:net";
import { test } from "node:test";
import { ApprovalNeeded, Holdfast, HoldfastError, ServerUnavailable, TurnFailed, type DraftText, type SessionEvent } from "holdfast-client";

const url = process.env["HOLDFAST_URL"]!;
const token = process.env["HOLDFAST_TOKEN"]!;
const holdfast = new Holdfast({ url, token });

/** A proxy that cuts a connection after it has passed on so many bytes of the response. */
async function cutting(limits: number[]): Promise<{ url: string; cuts: () => number; close: () => void }> {
  const sockets = new Set<Socket>();
  let cuts = 0;
  const server = createServer((client) => {
    const upstream = connect(Number(new URL(url).port), "127.0.0.1");
    const end = () => void (client.destroy(), upstream.destroy());
    let left = limits.shift() ?? Infinity;
    sockets.add(client);
    client.on("data", (data) => upstream.write(data)).on("error", end).on("close", end);
    upstream.on("error", end).on("close", end).on("data", (data) => {
      client.write(data.subarray(0, Math.min(left, data.length)));
      left -= data.length;
      if (left > 0) return;
      cuts += 1;
      client.destroySoon();
      upstream.destroy();
    });
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const close = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, cuts: () => cuts, close };
}

async function collect<T>(source: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of source) items.push(item);
  return items;
}

const isError = (code: string, status?: number) => (error: unknown) =>
  error instanceof HoldfastError && error.code === code && error.status === status && error.message.length > 0;

test("a session is created, found, listed and read", async () => {
  const session = await holdfast.session({ agent: "agent", id: "ts-read", title: "Of the client" });
  const turn = await session.send("say hello there");
  assert.equal(await turn.result(), "hello there ");
  assert.equal((await turn.wait()).state, "done");
  assert.equal((await holdfast.session({ id: "ts-read" })).id, "ts-read");
  assert.equal((await holdfast.session({ agent: "agent", id: "ts-read" })).id, "ts-read");
  assert.equal((await session.info()).title, "Of the client");
  assert.deepEqual((await collect(holdfast.sessions({ search: "Of the client" }))).map((each) => each.id), ["ts-read"]);
  const messages = await collect(session.messages());
  assert.deepEqual(messages.map((message) => message["kind"]), ["request", "response"]);
  assert.deepEqual((await collect(session.submissions({ payloads: true }))).map((each) => each.payload), [{ text: "say hello there" }]);
  assert.equal((await holdfast.me()).owner, "ada");
});

test("errors have the code, the status and the facts of the server", async () => {
  const stranger = new Holdfast({ url, token: "hf_wrong" });
  await assert.rejects(stranger.session({ agent: "agent" }), isError("unauthenticated", 401));
  const session = await holdfast.session({ agent: "agent", id: "ts-errors" });
  await assert.rejects(holdfast.session({ id: "ts-nothing" }), isError("session_not_found", 404));
  await assert.rejects(session.submit({ text: 7 as unknown as string }), isError("bad_input", 422));
});

test("a message with the same key is sent once", async () => {
  const session = await holdfast.session({ agent: "agent" });
  const first = await session.send("say once", { idempotency_key: "k" });
  const second = await session.send("say once", { idempotency_key: "k" });
  assert.equal(second.id, first.id);
  assert.equal(await second.result(), "once ");
  assert.equal((await collect(session.submissions())).length, 1);
  await assert.rejects(session.send("say other", { idempotency_key: "k" }), isError("key_reused", 409));
});

test("a busy session rejects a message, if that is asked for", async () => {
  const session = await holdfast.session({ agent: "agent" });
  const turn = await session.send("talk");
  for await (const event of session.events()) if (event.kind === "run_started") break;
  await assert.rejects(session.send("say more", { when_busy: "reject" }), isError("turn_in_progress", 409));
  await turn.cancel();
  assert.equal((await turn.wait()).state, "failed");
});

test("a stream that is cut again and again has each event once", async () => {
  const session = await holdfast.session({ agent: "agent" });
  const turn = await session.send(`say ${"word ".repeat(60)}`.trim());
  const proxy = await cutting([1500, 2500, 700, 1200, 2000]);
  try {
    const behind = await new Holdfast({ url: proxy.url, token }).session({ id: session.id }); // takes a connection of its own
    const seen: SessionEvent[] = [];
    const drafts: DraftText[] = [];
    for await (const event of behind.events({ drafts: true })) {
      if (!("seq" in event)) drafts.push(event);
      else seen.push(event);
      if ("seq" in event && event.kind === "submission_done") break;
    }
    assert.ok(proxy.cuts() >= 3, `${proxy.cuts()} cuts`);
    assert.ok(drafts.length > 0);
    const { seq } = await session.info();
    assert.deepEqual(seen.map((event) => event.seq), Array.from({ length: seq }, (_, index) => index + 1));
    assert.equal(await turn.result(), "word ".repeat(60));
    const rest = [];
    for await (const event of session.events({ after: seq - 2 })) {
      rest.push(event.seq);
      if (event.seq === seq) break;
    }
    assert.deepEqual(rest, [seq - 1, seq]);
  } finally {
    proxy.close();
  }
});

test("a tool call is approved or denied, and the turn continues", async () => {
  const session = await holdfast.session({ agent: "agent", id: "ts-approval" });
  const turn = await session.send("remove it");
  assert.equal((await turn.wait()).state, "waiting");
  const [call] = await session.approvals();
  assert.deepEqual(call?.arguments, { path: "notes.txt" });
  assert.ok((await holdfast.inbox()).items.some((item) => item.id === session.id));
  const needed = await turn.result().catch((error: unknown) => error);
  assert.ok(needed instanceof ApprovalNeeded && needed.calls[0]?.call_id === call?.call_id);
  await session.approve(needed.calls[0]!);
  assert.equal(await turn.result(), "ended after 1: removed notes.txt");
  const second = await session.send("remove more");
  await second.wait();
  const [other] = await session.approvals();
  await session.deny(other!.call_id, { feedback: "Not today." });
  assert.equal(await second.result(), "ended after 1: Not today.");
  await assert.rejects(session.approve(other!.call_id), isError("conflict"));
});

test("a turn is interrupted and continued", async () => {
  const session = await holdfast.session({ agent: "agent" });
  const turn = await session.send("talk");
  for await (const event of turn.events({ drafts: true })) if (!("seq" in event)) break;
  await session.interrupt();
  const failed = await turn.result().catch((error: unknown) => error);
  assert.ok(failed instanceof TurnFailed && failed.facts["id"] === turn.id);
  const again = await turn.retry();
  for await (const event of again.events({ drafts: true })) if (!("seq" in event)) break;
  await again.cancel();
  assert.equal((await again.wait()).state, "failed");
});

test("a signal ends a stream and a wait, and not the turn", async () => {
  const session = await holdfast.session({ agent: "agent" });
  const turn = await session.send("remove it");
  await turn.wait();
  const control = new AbortController();
  const reading = collect(session.events({ signal: control.signal }));
  control.abort(new Error("enough"));
  await assert.rejects(reading, /enough/);
  await assert.rejects(turn.wait({ signal: AbortSignal.abort(new Error("at once")) }), /at once/);
  assert.equal((await turn.info()).state, "waiting");
});

test("large content is restored", async () => {
  const session = await holdfast.session({ agent: "agent" });
  await (await session.send("huge 100000")).result();
  const parts = (await collect(session.messages())).flatMap((message) => message["parts"] as { part_kind: string; content: string }[]);
  assert.equal(parts.find((part) => part.part_kind === "tool-return")?.content, "x".repeat(100_000));
  for await (const event of session.events()) {
    if (event.kind === "submission_done") break;
    assert.ok(!JSON.stringify(event).includes("media+sha256"));
  }
});

test("a server that is away is an error of its own, also with a fetch of one's own", async () => {
  const proxy = await cutting([]);
  proxy.close();
  await assert.rejects(new Holdfast({ url: proxy.url, token }).me(), (error) => error instanceof ServerUnavailable);
  const asked: string[] = [];
  const own: typeof fetch = (input, init) => (asked.push(String(input)), fetch(input, init));
  await new Holdfast({ url: `${url}/`, token, fetch: own }).me();
  assert.deepEqual(asked, [`${url}/api/me`]);
});
