// The stock client of Durable Streams. Prints the kinds of the events that it reads, from the start and live, as JSON.
// node durable_streams.mjs URL TOKEN
import { stream } from "@durable-streams/client";

const [url, token] = process.argv.slice(2);
const headers = { authorization: `Bearer ${token}` };
const send = (text) =>
  fetch(`${url}/api/chat`, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: JSON.stringify({ id: "stock-stream", messages: [{ id: text, role: "user", parts: [{ type: "text", text }] }] }),
  }).then((response) => response.text());

await send("say hello");
const whole = await (await stream({ url: `${url}/api/streams/stock-stream`, headers, live: false, json: true })).json();
const told = { whole: whole.map((event) => event.kind) };
for (const live of ["long-poll", "sse"]) {
  const response = await stream({ url: `${url}/api/streams/stock-stream`, headers, offset: "-1", live, json: true });
  const kinds = [];
  const wanted = (await (await fetch(`${url}/api/sessions/stock-stream`, { headers })).json()).seq + 4;
  await new Promise((done) => {
    response.subscribeJson((batch) => {
      kinds.push(...batch.items.map((event) => event.kind));
      if (kinds.length >= wanted) done();
    });
    setTimeout(() => send(`say more ${live}`), 300);
  });
  response.cancel?.();
  told[live] = kinds;
}
console.log(JSON.stringify(told));
process.exit(0);
