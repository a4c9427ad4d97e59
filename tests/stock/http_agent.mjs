// The stock HttpAgent of AG-UI. Prints its messages as JSON.
// node http_agent.mjs URL TOKEN
import { HttpAgent } from "@ag-ui/client";

const [url, token] = process.argv.slice(2);
const agent = new HttpAgent({ url: `${url}/api/ag-ui`, threadId: "stock-thread", headers: { authorization: `Bearer ${token}` } });
const events = [];
const runs = [];
for (const text of ["say hello there", "say more"]) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
  const runId = crypto.randomUUID();
  runs.push(runId);
  await agent.runAgent({ runId }, { onEvent: ({ event }) => void events.push(event) });
}
console.log(JSON.stringify({ messages: agent.messages, runs, events }));
