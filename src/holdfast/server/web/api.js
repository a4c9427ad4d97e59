// Requests to the server of the page. Errors have the server's message. Status 401 shows the sign-in form.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const listeners = new Set();

export function onUnauthenticated(listener) {
  listeners.add(listener);
}

export function signalUnauthenticated() {
  for (const listener of listeners) listener();
}

// `file` is sent as it is; everything else as JSON.
export async function request(method, path, body, file = null) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: file ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
  } catch {
    throw new ApiError(0, "unreachable", "The server does not respond.");
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  const error = await response.json().then(
    (body) => body.error ?? {},
    () => ({}),
  );
  if (response.status === 401 && path !== "/sign-in") signalUnauthenticated();
  throw new ApiError(response.status, error.code ?? "http_error", messageOf(error) ?? `The server responded with status ${response.status}.`);
}

// Messages that would otherwise mention command-line options, or repeat the name of the open session.
const MESSAGES = {
  unauthenticated: "This token is unknown, expired or revoked.",
  session_cleaned: "This session was cleaned. Restore it first.",
  payload_too_large: "This is larger than the server accepts.",
};

function messageOf({ code, message }) {
  if (code === "retention_refused") return message?.replace(/^Session \S+ was not changed: /, "Not cleaned: ");
  return MESSAGES[code] ?? message;
}

export const get = (path) => request("GET", path);
// A page may be shorter than its limit, because the server also limits its size.
const all = async (path) => {
  const items = [];
  let cursor = null;
  do {
    const page = await get(cursor === null ? path : `${path}&cursor=${encodeURIComponent(cursor)}`);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return { items };
};
export const post = (path, body = {}) => request("POST", path, body);

const session = (id) => `/api/sessions/${encodeURIComponent(id)}`;
const schedule = (id) => `/api/schedules/${encodeURIComponent(id)}`;
const subscription = (id) => `/api/subscriptions/${encodeURIComponent(id)}`;
const run = (id) => `/api/runs/${encodeURIComponent(id)}`;

export const me = () => get("/api/me");
export const signIn = (token) => post("/sign-in", { token });
export const signOut = () => post("/sign-out");
export const inbox = () => get("/api/inbox");
export const workers = () => get("/api/workers");
export const schedules = () => all("/api/schedules?limit=200");
export const changeSchedule = (id, change) => request("PATCH", schedule(id), change);
export const runSchedule = (id) => post(`${schedule(id)}/run`);
export const subscriptions = () => all("/api/subscriptions?limit=200");
export const createSubscription = (terms) => post("/api/subscriptions", terms);
export const changeSubscription = (id, change) => request("PATCH", subscription(id), change);
export const deleteSubscription = (id) => request("DELETE", subscription(id));
export const rotateSecret = (id) => post(`${subscription(id)}/secret`);
export const testSubscription = (id) => request("POST", `${subscription(id)}/test`);
export const repeatDelivery = (id, delivery) => request("POST", `${subscription(id)}/deliveries/${encodeURIComponent(delivery)}/repeat`);
export function deliveries(id, state, cursor = null) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ state, cursor })) if (value) query.set(name, value);
  return get(`${subscription(id)}/deliveries?${query}`);
}
export function usage(group, first, limit) {
  const query = new URLSearchParams({ by: group, limit });
  if (first) query.set("first", first);
  return get(`/api/usage?${query}`);
}
export const budgets = () => all("/api/budgets?limit=1000");
export const setBudget = (budget) => request("PUT", "/api/budgets", budget);
export const readSession = (id) => get(session(id));
export const createSession = (facts) => post("/api/sessions", facts);
export const changeSession = (id, change) => request("PATCH", session(id), change);
export const interrupt = (id) => post(`${session(id)}/interrupt`);
export const background = (id) => post(`${session(id)}/background`);
export const dismiss = (id) => post(`${session(id)}/dismiss`);
export const undo = (id) => post(`${session(id)}/undo`);
export const compact = (id) => post(`${session(id)}/compact`);
export const answer = (id, given) => post(`${session(id)}/approvals`, given);
export const fork = (id, place) => post(`${session(id)}/fork`, place);
export const rewind = (id, place) => post(`${session(id)}/rewind`, place);
export const retry = (id, submission) => post(`${session(id)}/retry`, { submission_id: submission });
export const undoEffects = (id, submission) => post(`${session(id)}/undo-effects`, { submission_id: submission });
export const submit = (id, facts) => post(`${session(id)}/submissions`, facts);
// The failed submissions; with `payloads`, including their payloads.
export const failures = async (id, payloads = false) => {
  const pages = await Promise.all(["failed", "dead"].map((state) => all(`${session(id)}/submissions?state=${state}&payloads=${payloads}&limit=1000`)));
  return pages.flatMap((page) => page.items);
};
export const checkpoints = (runId) => all(`${run(runId)}/checkpoints?limit=1000`);
export const effects = (runId) => all(`${run(runId)}/effects?limit=1000`);
export const settle = (runId, callId, outcome) => post(`${run(runId)}/effects/${encodeURIComponent(callId)}`, outcome);
export const delegates = (runId) => get(`${run(runId)}/runs?limit=100`);
export const commands = (id) => get(`${session(id)}/commands?limit=20`);
export const output = (id, commandId, after) => get(`${session(id)}/commands/${commandId}/output?after=${after}&limit=200`);
export const conversation = (id) => all(`${session(id)}/conversation?limit=1000`);
export const outlook = (id) => get(`${session(id)}/retention`);
export const clean = (id, terms) => post(`${session(id)}/clean`, terms);
export const exportOf = (id) => `${session(id)}/export?gzip=true`;
export const audit = (id) => get(`/api/audit?session_id=${encodeURIComponent(id)}&limit=200`);
export const killWorker = (id) => post("/api/demo/kill", { session_id: id });
export const rehydrate = (id, file) => request("POST", `${session(id)}/rehydrate`, undefined, file);
export const eventsOf = (id) => `${session(id)}/events`;

export function listSessions({ search, status, cursor } = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ search, status, cursor })) if (value) query.set(name, value);
  return get(`/api/sessions?${query}`);
}

export function newKey() {
  // Not randomUUID: browsers only have it on https and loopback.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Retries until the server accepts or rejects the message. Its idempotency key prevents duplicates.
export async function sendWithRetry(id, facts, onRetry) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    try {
      return await submit(id, facts);
    } catch (error) {
      if (error.status !== 0 && error.status !== 503) throw error;
      onRetry(error);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}
