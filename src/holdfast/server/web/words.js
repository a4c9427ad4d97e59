// Times, durations and numbers as people read them.

export const STATUS = {
  idle: "idle",
  queued: "queued",
  running: "running",
  waiting: "waits for you",
  cleaning: "being cleaned",
  cleaned: "cleaned",
  moved: "moved",
  failed: "failed",
};

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
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

export const clock = (iso) => (iso ? new Date(iso).toLocaleTimeString() : "");
export const moment = (iso) => (iso ? new Date(iso).toLocaleString() : "");
export const count = (number, noun) => `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;

export function pretty(value) {
  if (typeof value === "string") return value;
  return JSON.stringify(value, null, 2) ?? "";
}

export function titleOf(session) {
  return session.title || `Session ${session.id.slice(-8)}`;
}
