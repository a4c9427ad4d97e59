// Notifications of the browser while the page is hidden: a session waits for a person, or its turn ended or failed.
import { html, useEffect, useState } from "./preact.js";
import * as api from "./api.js";
import { titleOf } from "./words.js";

const EVERY = 10_000;
const ENABLED = "holdfast/notifications"; // whether they are turned on in this browser
const SEEN = "holdfast/notifications-seen"; // the last events that a tab has seen
const EVENTS = { waiting: "Waiting for you", failed: "The last turn failed", idle: "The turn ended" };
const HINTS = {
  on: "This browser notifies you when a session waits for you, ends or fails while this page is open but hidden.",
  off: "This browser can notify you when a session waits for you, ends or fails while this page is open but hidden.",
  denied: "The browser blocks notifications of this page. Allow them in its settings for this site, then turn them on here.",
  unsupported: "This browser cannot show notifications of this page. Most browsers need HTTPS for them.",
};

function currentState() {
  if (!("Notification" in window) || !isSecureContext) return "unsupported";
  if (Notification.permission === "denied") return "denied";
  return Notification.permission === "granted" && localStorage.getItem(ENABLED) ? "on" : "off";
}

function readSeen() {
  try {
    return JSON.parse(localStorage.getItem(SEEN)) ?? {};
  } catch {
    return {};
  }
}

// Returns the sessions with an event since they were seen. A session that was not listed then has one if it was active later.
function eventsSince({ sessions: seen = {}, until = "" }, sessions) {
  return sessions.filter(({ id, status, seq, parent_id, active_at }) => {
    if (!Object.hasOwn(EVENTS, status) || !seq || parent_id) return false;
    return id in seen ? seq > seen[id] : active_at > until;
  });
}

// Returns whether the browser can show notifications. Phones only show those of service workers.
function show(session) {
  try {
    // If another tab shows the same event, the tag lets one replace the other.
    const shown = new Notification(titleOf(session), { body: EVENTS[session.status], tag: `holdfast/${session.id}/${session.seq}`, icon: "/static/icon.svg" });
    shown.onclick = () => {
      window.focus();
      location.hash = `#/s/${encodeURIComponent(session.id)}`;
      shown.close();
    };
    return true;
  } catch {
    return false;
  }
}

// Reads the sessions from time to time. Everything that happened while the page was visible counts as seen.
function watch(onUnsupported) {
  let latest = 0;
  let timer = 0;
  const look = async (notifies) => {
    const number = ++latest;
    clearTimeout(timer);
    try {
      const { items } = await api.listSessions();
      if (number !== latest) return;
      const seen = readSeen();
      const sessions = Object.fromEntries(items.map(({ id, seq }) => [id, seq]));
      const until = items.reduce((time, { active_at }) => (active_at > time ? active_at : time), "");
      localStorage.setItem(SEEN, JSON.stringify({ sessions, until }));
      if (notifies && document.hidden && !eventsSince(seen, items).every(show)) onUnsupported();
    } catch {
      // The server does not respond. What happens meanwhile is found later.
    }
    if (number === latest) timer = setTimeout(look, EVERY, true);
  };
  const onChange = () => look(false);
  document.addEventListener("visibilitychange", onChange);
  look(false);
  return () => {
    latest = -1;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onChange);
  };
}

export function useNotifications(me) {
  const [state, setState] = useState(currentState);
  useEffect(() => (me === null || state !== "on" ? undefined : watch(() => setState("unsupported"))), [me, state]);
  const turnOn = async () => {
    if ((await Notification.requestPermission()) === "granted") localStorage.setItem(ENABLED, "yes");
    setState(currentState());
  };
  const turnOff = () => {
    localStorage.removeItem(ENABLED);
    setState(currentState());
  };
  return { state, turnOn, turnOff };
}

export function Notifications({ state, turnOn, turnOff }) {
  return html`<section class="notifications" aria-label="Notifications">
    <p class="row">
      ${state === "on"
        ? html`<button type="button" onClick=${turnOff}>Turn off notifications</button>`
        : html`<button type="button" disabled=${state === "unsupported"} onClick=${turnOn}>Turn on notifications</button>`}
      <span class="hint" role="status">${HINTS[state]}</span>
    </p>
  </section>`;
}
