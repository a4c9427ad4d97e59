// Where a person writes. While a turn runs they choose: after it, into it, or instead of it.
import { html, useState } from "./preact.js";

const CHOICES = [
  ["queue", "Queue", "answered after this turn"],
  ["steer", "Steer", "enters this turn at its next step"],
  ["interrupt", "Interrupt", "stops this turn first"],
];

export function Composer({ busy, disabled, onSend }) {
  const [text, setText] = useState("");
  const [when, setWhen] = useState("queue");

  function send(event) {
    event?.preventDefault();
    if (!text.trim() || disabled) return;
    onSend(text, busy ? when : "queue");
    setText("");
    setWhen("queue");
  }

  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };

  return html`<form class="composer" onSubmit=${send}>
    ${busy &&
    html`<fieldset class="choices">
      <legend class="unseen">While the agent works, your message</legend>
      ${CHOICES.map(
        ([value, label, meaning]) => html`<label title=${meaning}>
          <input type="radio" name="when" value=${value} checked=${when === value} onChange=${() => setWhen(value)} />
          <span>${label}</span>
        </label>`,
      )}
      <span class="hint">${CHOICES.find(([value]) => value === when)[2]}</span>
    </fieldset>`}
    <div class="row">
      <textarea
        rows=${Math.min(8, Math.max(1, text.split("\n").length))}
        aria-label="Message"
        title="Enter sends, Shift+Enter breaks the line"
        placeholder=${disabled ? "This session takes no messages" : "Say something"}
        value=${text}
        disabled=${disabled}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${onKeyDown}
      ></textarea>
      <button type="submit" class="primary" disabled=${disabled || !text.trim()}>Send</button>
    </div>
  </form>`;
}
