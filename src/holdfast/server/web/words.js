// Times, durations, numbers and states as text.

export const STATUS = {
  idle: "idle",
  queued: "queued",
  running: "running",
  waiting: "waiting for you",
  sleeping: "sleeping",
  cleaning: "being cleaned",
  cleaned: "cleaned",
  moved: "moved",
  failed: "failed",
};

export const REASON = { worker: "no worker", resume: "interrupted", timer: "scheduled" };

// The states of tool calls, model requests and runs in all views: label and explanation.
const OUTCOMES = {
  planned: ["planned", "It has not started."],
  waiting: ["waiting for you", "It is waiting for your decision."],
  running: ["running", "It is running."],
  done: ["done", "Its result is recorded. It will not run again."],
  replayed: ["replayed", "Its worker stopped. The recorded result was used, and the call did not run again."],
  unknown: ["unknown", "Its worker stopped before it ended, so its outcome is unknown. It was not repeated."],
  undone: ["undone", "Its effect was undone."],
  undoing: ["being undone", "Its effect is being undone."],
  "undo failed": ["undo failed", "Its undo failed. Undo the effects again to retry it."],
  "undo unknown": ["undo unknown", "The undo was stopped before it ended, so its outcome is unknown."],
  failed: ["failed", "It failed."],
  denied: ["denied", "A person denied it."],
  "not run": ["not run", "The conversation continued without it."],
  interrupted: ["interrupted", "A person stopped it."],
  "cut off": ["cut off", "Its worker stopped before it ended."],
  "handed over": ["handed over", "Another worker continued it."],
};

export function outcome(state) {
  const [label, meaning] = OUTCOMES[state] ?? [state, ""];
  return { label, meaning, className: state.replaceAll(" ", "-") };
}

export function ago(iso, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(iso)) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(iso).toLocaleDateString();
}

export function lasting(milliseconds) {
  if (milliseconds < 950) return `${Math.max(0, Math.round(milliseconds))} ms`;
  if (milliseconds < 59_950) return `${(milliseconds / 1000).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min${seconds % 60 ? ` ${seconds % 60} s` : ""}`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((seconds % 3600) / 60)} min` : count(Math.floor(hours / 24), "day");
}

export const clock = (iso) => (iso ? new Date(iso).toLocaleTimeString() : "");
export const moment = (iso) => (iso ? new Date(iso).toLocaleString() : "");
export const count = (number, noun) => `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;

// What a sleeping session waits for, with its time in the zone of the reader.
export function sleepsFor(session) {
  if (session.status !== "sleeping") return null;
  return (session.waiting_for ?? "").replace(/until (\S+?)(?=,|$)/g, (_, iso) => `until ${moment(iso)}`);
}

const DEFAULTS = { deny: "it is denied", approve: "it is approved", fail: "the turn fails", remind: "you are reminded" };

// What happens to a question without an answer; empty if it has no deadline.
export function expiry({ deadline, default: fallback }) {
  return deadline ? `If nobody answers by ${moment(deadline)}, ${DEFAULTS[fallback] ?? fallback}.` : "";
}

export function pretty(value) {
  if (typeof value === "string") return value;
  return JSON.stringify(value, null, 2) ?? "";
}

export function argumentsText(given) {
  if (typeof given !== "string") return pretty(given ?? {});
  try {
    return JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    return given;
  }
}

// A reason without the prefix and suffix that the server adds.
export function plainly(reason) {
  const problem = /^(?:This conflicts with stored data|Invalid input): (.+?)\.(?: Nothing was changed\.)?$/s.exec(reason)?.[1];
  return problem ? `${problem}.` : reason;
}

export function titleOf(session) {
  return session.title || `Session ${session.id.slice(-8)}`;
}

// The default title of a session: the first line of its first message.
export function titleFrom(message) {
  const [line] = message.trim().split("\n");
  return line.length > 80 ? `${line.slice(0, 79).trimEnd()}…` : line;
}
