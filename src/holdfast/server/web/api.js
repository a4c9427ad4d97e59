// Requests to the server the page came from. Errors carry its own words; a lost session of the browser asks for a token.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const refused = new Set();

export function onRefused(listener) {
  refused.add(listener);
}

export function tellRefused() {
  for (const listener of refused) listener();
}

// `file` is sent as it is; everything else as JSON.
export async function request(method, path, body, file = null) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: file ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
  } catch {
    throw new ApiError(0, "unreachable", "The server does not answer.");
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const said = await answer.json().then(
    (found) => found.error ?? {},
    () => ({}),
  );
  if (answer.status === 401 && path !== "/sign-in") tellRefused();
  throw new ApiError(answer.status, said.code ?? "http_error", messageOf(said) ?? `The server answered ${answer.status}.`);
}

// Messages that name options of the command line, or the session that is open anyway, in terms of the page.
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
// A page also ends with the item that reaches the server's limit on its size.
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
const run = (id) => `/api/runs/${encodeURIComponent(id)}`;

export const me = () => get("/api/me");
export const signIn = (token) => post("/sign-in", { token });
export const signOut = () => post("/sign-out");
export const inbox = () => get("/api/inbox");
export const workers = () => get("/api/workers");
export const readSession = (id) => get(session(id));
export const createSession = (facts) => post("/api/sessions", facts);
export const changeSession = (id, change) => request("PATCH", session(id), change);
export const interrupt = (id) => post(`${session(id)}/interrupt`);
export const background = (id) => post(`${session(id)}/background`);
export const undo = (id) => post(`${session(id)}/undo`);
export const compact = (id) => post(`${session(id)}/compact`);
export const answer = (id, given) => post(`${session(id)}/approvals`, given);
export const fork = (id, place) => post(`${session(id)}/fork`, place);
export const rewind = (id, place) => post(`${session(id)}/rewind`, place);
export const submit = (id, facts) => post(`${session(id)}/submissions`, facts);
// The submissions that failed; with `payloads`, also what was sent.
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
  // Not randomUUID: browsers have it on https and loopback only.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Sends a message until the server has said yes or no. The key makes a repeated one the same one.
export async function sendSurely(id, facts, onTrouble) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    try {
      return await submit(id, facts);
    } catch (error) {
      if (error.status !== 0 && error.status !== 503) throw error;
      onTrouble(error);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}
