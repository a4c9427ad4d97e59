// The deliveries of a subscription, latest first, with a button that sends one again, or a pending one now.
import { html, useCallback, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { moment } from "./words.js";

const EVERY = 2000;
const STATES = { pending: ["pending", "waiting"], delivered: ["delivered", "done"], undeliverable: ["undeliverable", "failed"] };

// The time of the next attempt. A delivery without one waits for an earlier one of its session.
function Next({ delivery, paused }) {
  if (delivery.state !== "pending") return "–";
  if (paused) return html`<span class="hint">after the pause</span>`;
  if (delivery.due_at === null) return html`<span class="hint">after the previous one of the session</span>`;
  return html`<time datetime=${delivery.due_at}>${moment(delivery.due_at)}</time>`;
}

export function Deliveries({ subscription, mayWrite }) {
  const [state, setState] = useState("");
  const [found, setFound] = useState(null);
  const [older, setOlder] = useState([]);
  const [next, setNext] = useState(null);
  const [problem, setProblem] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const { id, paused } = subscription;
  const read = useCallback(async () => {
    try {
      const page = await api.deliveries(id, state);
      setFound(page.items);
      setNext(page.next_cursor);
      setTrouble(null);
    } catch (error) {
      setTrouble(error.message);
    }
  }, [id, state]);
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    setOlder([]);
    const again = async () => {
      if (!document.hidden) await read();
      if (!stopped) timer = setTimeout(again, EVERY);
    };
    again();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [read]);
  const readOlder = async () => {
    try {
      const page = await api.deliveries(id, state, older.at(-1)?.next ?? next);
      setOlder([...older, { items: page.items, next: page.next_cursor }]);
    } catch (error) {
      setProblem(error.message);
    }
  };
  const repeat = (delivery) => async () => {
    setProblem(null);
    try {
      await api.repeatDelivery(id, delivery.id);
    } catch (error) {
      setProblem(error.message);
    }
    await read();
  };
  const first = new Set((found ?? []).map((each) => each.id));
  const listed = [...(found ?? []), ...older.flatMap((page) => page.items.filter((each) => !first.has(each.id)))];
  const more = older.length ? older.at(-1).next : next;
  return html`<section aria-label="Deliveries">
    <h3>Deliveries to <span class="address">${subscription.url}</span></h3>
    <p><label class="period">State <select value=${state} onChange=${(event) => setState(event.target.value)}>
      <option value="">all</option>
      ${Object.keys(STATES).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label></p>
    ${trouble && html`<p class="banner reconnecting" role="status">${trouble} Retrying…</p>`}
    ${problem && html`<p class="banner bad" role="alert">${problem}</p>`}
    ${found !== null && !listed.length && html`<p class="empty">There are no ${state} deliveries.</p>`}
    ${listed.length > 0 &&
    html`<div class="scroll">
      <table>
        <thead><tr><th>time</th><th>notice</th><th>session</th><th>state</th><th>attempts</th><th>result</th><th>next</th>${mayWrite && html`<th>actions</th>`}</tr></thead>
        <tbody>
          ${listed.map((each) => {
            const [label, className] = STATES[each.state] ?? [each.state, ""];
            return html`<tr key=${each.id}>
              <td data-label="time"><time datetime=${each.at} title=${`webhook-id ${each.id}`}>${moment(each.at)}</time></td>
              <td data-label="notice">${each.kind}</td>
              <td data-label="session">${each.session_id ? html`<a href=${`#/s/${encodeURIComponent(each.session_id)}`}>${each.session_id}</a>` : "–"}</td>
              <td data-label="state"><span class=${`badge ${className}`}>${label}</span></td>
              <td data-label="attempts">${each.attempts}</td>
              <td data-label="result">${each.result ?? "–"}</td>
              <td data-label="next"><${Next} delivery=${each} paused=${paused} /></td>
              ${mayWrite &&
              html`<td data-label="actions">${(each.ended_at || each.attempts > 0) && html`<button type="button" disabled=${paused} aria-label=${`Send the notice ${each.kind} of ${moment(each.at)} again`} onClick=${repeat(each)}>Send again</button>`}</td>`}
            </tr>`;
          })}
        </tbody>
      </table>
    </div>`}
    ${more && html`<button type="button" class="quiet" onClick=${readOlder}>Show older</button>`}
    <p class="hint">Deliveries that ended more than two weeks ago are deleted.</p>
  </section>`;
}
