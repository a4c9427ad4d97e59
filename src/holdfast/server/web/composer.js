// The message form. During a turn, the user chooses when the message is handled.
import { html, useRef, useState } from "./preact.js";

const CHOICES = [
  ["queue", "Queue", "handled after this turn"],
  ["steer", "Steer", "added to this turn at its next step"],
  ["interrupt", "Interrupt", "stops this turn first"],
];
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const LARGEST = 7 * 1024 * 1024; // bytes of all images of a message, so that they fit into a request as base64

// Reads a file as a part of a message.
function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name, type: file.type, size: file.size, url: reader.result });
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

export function partsOf(text, pictures) {
  const shown = pictures.map(({ type, url }) => ({ kind: "binary", media_type: type, data: url.slice(url.indexOf(",") + 1) }));
  return text.trim() ? [text, ...shown] : shown;
}

export function Composer({ busy, disabled, onSend }) {
  const [text, setText] = useState("");
  const [when, setWhen] = useState("queue");
  const [pictures, setPictures] = useState([]);
  const [problem, setProblem] = useState(null);
  const picker = useRef(null);
  const empty = !text.trim() && !pictures.length;

  function send(event) {
    event?.preventDefault();
    if (empty || disabled) return;
    onSend(text, busy ? when : "queue", pictures);
    setText("");
    setPictures([]);
    setWhen("queue");
  }

  async function attach(files) {
    const chosen = [...files];
    if (!chosen.length) return;
    const size = [...pictures, ...chosen].reduce((sum, file) => sum + file.size, 0);
    if (chosen.some((file) => !PICTURES.includes(file.type))) setProblem("Choose a PNG, JPEG, GIF or WebP image.");
    else if (size > LARGEST) setProblem("The images of a message can have 7 MB in total.");
    else {
      setProblem(null);
      const more = await Promise.all(chosen.map(read));
      setPictures((before) => [...before, ...more]);
    }
  }

  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  const onPaste = (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    attach(files);
  };
  const onDrop = (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attach(event.dataTransfer.files);
  };
  const pick = (event) => {
    attach(event.target.files);
    event.target.value = "";
  };

  return html`<form class="composer" onSubmit=${send} onDrop=${onDrop}>
    ${busy &&
    html`<fieldset class="choices">
      <legend class="unseen">While the agent is working, your message is</legend>
      ${CHOICES.map(
        ([value, label, meaning]) => html`<label title=${meaning}>
          <input type="radio" name="when" value=${value} checked=${when === value} onChange=${() => setWhen(value)} />
          <span>${label}</span>
        </label>`,
      )}
      <span class="hint">${CHOICES.find(([value]) => value === when)[2]}</span>
    </fieldset>`}
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${pictures.length > 0 &&
    html`<ul class="attached" aria-label="Attached images">
      ${pictures.map(
        (picture, n) => html`<li key=${`${picture.name}/${n}`}>
          <img src=${picture.url} alt=${picture.name} />
          <button type="button" class="quiet" aria-label=${`Remove ${picture.name}`} onClick=${() => setPictures(pictures.filter((one) => one !== picture))}>×</button>
        </li>`,
      )}
    </ul>`}
    <div class="row">
      <button type="button" class="attach" disabled=${disabled} aria-label="Attach an image" title="Attach an image. You can also paste or drop one." onClick=${() => picker.current.click()}>+</button>
      <input ref=${picker} type="file" class="unseen" accept=${PICTURES.join(",")} multiple tabindex="-1" aria-label="Image" onChange=${pick} />
      <textarea
        rows=${Math.min(8, Math.max(1, text.split("\n").length))}
        aria-label="Message"
        title="Enter sends, Shift+Enter adds a line"
        placeholder=${disabled ? "This session does not accept messages" : "Write a message"}
        value=${text}
        disabled=${disabled}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${onKeyDown}
        onPaste=${onPaste}
      ></textarea>
      <button type="submit" class="primary" disabled=${disabled || empty}>Send</button>
    </div>
  </form>`;
}
