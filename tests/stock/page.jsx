// A page with nothing but stock parts: `useChat` of the AI SDK, or the HttpAgent of AG-UI. The address names which one, and the session.
import { HttpAgent } from "@ag-ui/client";
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useEffect, useReducer, useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const id = query.get("id");

function Form({ send }) {
  const submit = (event) => {
    event.preventDefault();
    send(event.target.message.value);
    event.target.reset();
  };
  return (
    <form onSubmit={submit}>
      <input name="message" aria-label="Message" />
    </form>
  );
}

function Question({ answer }) {
  return (
    <span>
      <button onClick={() => answer(true)}>Approve</button>
      <button onClick={() => answer(false)}>Deny</button>
    </span>
  );
}

function Chat({ messages: initialMessages }) {
  const { messages, sendMessage, addToolApprovalResponse, status, error } = useChat({
    id,
    messages: initialMessages,
    resume: true,
    transport: new DefaultChatTransport({ api: "/api/chat" }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const show = (part, index) => {
    if (part.type === "text") return <p key={index}>{part.text}</p>;
    if (!part.type.startsWith("tool-")) return null;
    return (
      <p key={index} className="tool">
        {part.type} {part.state} {JSON.stringify(part.input)} {part.output}
        {part.state === "approval-requested" && (
          <Question answer={(approved) => addToolApprovalResponse({ id: part.approval.id, approved })} />
        )}
      </p>
    );
  };
  return (
    <>
      {messages.map((message) => (
        <article key={message.id} className={message.role}>
          {message.parts.map(show)}
        </article>
      ))}
      <output>{error ? `error: ${error.message}` : status}</output>
      <Form send={(text) => sendMessage({ text })} />
    </>
  );
}

// An HttpAgent has no history of its own on the server: the page keeps its messages, and the run that has not ended.
const kept = JSON.parse(sessionStorage.getItem(id) ?? '{"messages": [], "interrupts": []}');
const agent = new HttpAgent({ url: "/api/ag-ui", threadId: id, initialMessages: kept.messages });
agent.pendingInterrupts = kept.interrupts;
const keep = (run) =>
  sessionStorage.setItem(id, JSON.stringify({ messages: agent.messages, interrupts: agent.pendingInterrupts, run }));

function Thread() {
  const [, update] = useReducer((count) => count + 1, 0);
  const [status, setStatus] = useState("ready");
  const run = async (parameters) => {
    keep(parameters);
    setStatus("streaming");
    try {
      await agent.runAgent(parameters, { onMessagesChanged: update });
      keep();
      setStatus("ready");
    } catch (error) {
      setStatus(`error: ${error.message}`);
    }
  };
  useEffect(() => void (kept.run && run(kept.run)), []);
  const send = (content) => {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
    return run({ runId: crypto.randomUUID() });
  };
  const answer = (interrupt) => (approved) =>
    run({ runId: crypto.randomUUID(), resume: [{ interruptId: interrupt.id, status: "resolved", payload: { approved } }] });
  return (
    <>
      {agent.messages.map((message) => (
        <article key={message.id} className={message.role}>
          {message.content && <p>{message.content}</p>}
          {message.toolCalls?.map((call) => (
            <p key={call.id} className="tool">
              {call.function.name} {call.function.arguments}
            </p>
          ))}
        </article>
      ))}
      {status === "ready" && agent.pendingInterrupts.map((each) => <Question key={each.id} answer={answer(each)} />)}
      <output>{status}</output>
      <Form send={send} />
    </>
  );
}

const root = createRoot(document.getElementById("root"));
if (query.get("front") === "ag-ui") root.render(<Thread />);
else {
  const response = await fetch(`/api/chat/${id}`);
  root.render(<Chat messages={response.ok ? await response.json() : []} />);
}
