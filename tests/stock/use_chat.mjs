// The stock chat of the AI SDK, without React: what `useChat` uses, with its default transport. Prints its messages as JSON.
// node use_chat.mjs URL TOKEN
import { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";

const [url, token] = process.argv.slice(2);

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void this.messages.push(message);
  popMessage = () => void this.messages.pop();
  replaceMessage = (index, message) => void (this.messages[index] = message);
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(id, messages = []) {
    const state = new State();
    state.messages = messages;
    const transport = new DefaultChatTransport({ api: `${url}/api/chat`, headers: { authorization: `Bearer ${token}` } });
    super({
      id,
      state,
      transport,
      onError: (error) => console.error(error),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    });
  }
}

const settled = async (chat) => {
  while (chat.status === "submitted" || chat.status === "streaming") await new Promise((wake) => setTimeout(wake, 20));
};

const chat = new Chat("stock-chat");
await chat.sendMessage({ text: "say hello there" });
await chat.sendMessage({ text: "remove it" });
const call = chat.lastMessage.parts.find((part) => part.state === "approval-requested");
await chat.addToolApprovalResponse({ id: call.approval.id, approved: true });
await settled(chat);
const long = chat.sendMessage({ text: `say ${"word ".repeat(80)}` });
await new Promise((wake) => setTimeout(wake, 500));
// Another page opens the same chat half-way: it loads what there is, and resumes the stream.
const page = new Chat("stock-chat", (await (await fetch(`${url}/api/chat/stock-chat`, { headers: { authorization: `Bearer ${token}` } })).json()));
await page.resumeStream();
await long;
console.log(JSON.stringify({ chat: chat.messages, page: page.messages }));
