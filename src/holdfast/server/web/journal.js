// The state of a session, built from its events: the conversation, tool calls, runs and queue.
// Events are added in order. Unknown kinds are ignored.

import { plainly } from "./words.js";

const ENDED = new Set(["run_completed", "run_failed", "run_interrupted", "approval_requested", "run_waiting"]);

// A wait in words: a time, a signal, or a signal by a time.
function sleepOf({ wait, name, until }) {
  const what = wait === "signal" ? `waits for the signal ${name}` : "";
  return `${what}${until ? `${what && ", "}until ${new Date(until).toLocaleString()}` : ""}`;
}

const HANDOVERS = {
  background: "Moved to the background: another worker continues.",
  unwatched: "Moved to the background: no one was watching.",
};

export class Journal {
  constructor(session) {
    this.session = session;
    this.seq = 0;
    this.version = 0;
    this.items = [];
    this.drafts = new Map(); // run and part -> draft
    this.drawDrafts = () => {}; // set by the component that shows them
    this.runs = new Map(); // id -> run with its spans, in the order of their start
    this.marks = []; // for the timeline
    this.queue = new Map(); // submission id -> queued message
    this.usage = { requests: 0, input: 0, output: 0, cost: null };
    this.forks = [];
    this.failures = new Map(); // submission id -> why it failed
    this.retriable = null; // the submission of the last turn, if it failed and nothing has continued the session since
    this.undoable = new Set(); // the steps of the last turn that have an undo and are not undone
    this._steps = []; // every step with its run and its owner
    this._retriableBefore = null; // the same before the turn that is running
    this._calls = new Map(); // call id -> the last call that had it
    this._path = []; // the items of each message of the current history
    this._items = new Map(); // key of a message or part -> its item, since a replaced history repeats messages
    this._kinds = new Map(); // submission id -> its kind
    this._scheduled = new Set(); // the submissions of schedules that have not started
    this._prompts = new Map(); // run -> its prompt, until its first request
  }

  take(entries) {
    for (const entry of entries) entry.draft ? this._draft(entry.draft) : this._event(entry);
    this.version++;
  }

  _event(event) {
    this.seq = event.seq;
    const payload = event.payload ?? {};
    switch (event.kind) {
      case "submission_queued":
        this._kinds.set(payload.submission_id, payload.kind);
        if (payload.kind === "message") this.queue.set(payload.submission_id, { id: payload.submission_id });
        if (payload.kind === "message" && payload.schedule) this._scheduled.add(payload.submission_id);
        break;
      case "submission_started":
        if (this._scheduled.delete(payload.submission_id)) this._mark(event, "note", "A schedule sent this message.");
      // falls through
      case "submission_done":
        this.queue.delete(payload.submission_id);
        if (this._isTurn(payload)) {
          this._retriableBefore = this.retriable;
          this.retriable = null;
          if (this._kinds.get(payload.submission_id) === "message" && payload.attempt === 1 && !event.run_id) this.undoable.clear();
        }
        break;
      case "submission_failed":
        this.queue.delete(payload.submission_id);
        // A retry without a run was refused: the turn before it is still the last one.
        if (this._isTurn(payload)) this.retriable = this._isRefused(event, payload) ? this.retriable ?? this._retriableBefore : payload.submission_id;
        this._failed(event, payload);
        break;
      case "run_started":
        this._runStarted(event, payload);
        break;
      case "message":
        this._message(event);
        break;
      case "partial_response":
        this._partial(event, payload);
        break;
      case "model_request_started":
        this._open(event, "model", "model request");
        break;
      case "model_request_completed":
        this._close(event, "model", "done", payload.model);
        this._count(payload);
        break;
      case "model_request_failed":
        this._close(event, "model", "failed");
        if (payload.error !== "CancelledError") this._mark(event, "bad", `The model request failed: ${payload.error}`);
        break;
      case "tool_call_started":
      case "tool_call_completed":
      case "tool_call_failed":
        this._toolCall(event, payload);
        break;
      case "step_started":
      case "step_completed":
      case "step_failed":
      case "probe_answered":
        this._step(event, payload);
        break;
      case "undo_started":
      case "effect_undone":
      case "undo_failed":
        this._undo(event, payload);
        break;
      case "approval_requested":
        this._ran(event, "waiting");
        for (const call of payload.calls ?? []) this._waits(call.call_id);
        this.marks.push({ at: event.at, kind: "waiting", text: "Waiting for you.", run: event.run_id });
        break;
      case "approval_answered":
        this._answered(event, payload);
        break;
      case "approval_reminder":
        this._mark(event, "note", `Reminder ${payload.number}: ${payload.tool} is waiting for an answer.`);
        break;
      case "run_completed":
        this._ran(event, "done");
        if (this.runs.get(event.run_id)?.undoes) this._mark(event, "note", "The effects of the turn were undone.");
        break;
      case "run_failed":
        this._ran(event, "failed");
        this._leaveUndo(event);
        this._mark(event, "bad", `The run failed: ${payload.error ?? "no reason was given"}`);
        break;
      case "run_interrupted":
        this._ran(event, "interrupted");
        this._leaveUndo(event);
        this._mark(event, "note", "Interrupted.");
        break;
      case "recovered":
        this._cutOff(payload.run_id, event);
        this._mark(event, "good", "Recovered: the worker stopped, and another continued from the recorded state.");
        break;
      case "run_waiting":
        this._ran(event, "waiting");
        this._mark(event, "note", `Sleeping: ${(payload.waits ?? []).map(sleepOf).join(", ")}.`);
        break;
      case "signal_arrived":
        this._mark(event, "note", `The signal ${payload.name} arrived.`);
        break;
      case "waiting_for_thread":
        this._mark(event, "note", `Stopped. The turn ends when ${payload.name} has ended, which runs in a thread.`);
        break;
      case "takeover":
        this._mark(event, "note", "Taken over: the previous worker stopped.");
        break;
      case "handover":
        this._ran(event, "handed over");
        this._mark(event, "note", HANDOVERS[payload.reason] ?? `Handed over: ${payload.reason ?? "another worker continues"}.`);
        break;
      case "rewound":
        this._rewound(event, payload);
        break;
      case "compacted":
        this._mark(event, "note", `The history was shortened from ${payload.before} to ${payload.after} messages.`);
        this._path = Array.from({ length: payload.after ?? 0 }, () => []);
        break;
      case "forked":
        this.forks.push(payload.session_id);
        this._mark(event, "note", "Forked.", { fork: payload.session_id });
        break;
    }
    if (ENDED.has(event.kind) || event.kind === "handover") this._dropDrafts(event.run_id);
  }

  _draft(draft) {
    const key = `${draft.run_id}/${draft.part}`;
    const before = draft.offset > 0 ? (this.drafts.get(key)?.text ?? "") : "";
    this.drafts.set(key, { key, run: draft.run_id, part: draft.part, kind: draft.kind, text: before + draft.text });
  }

  _dropDrafts(run) {
    for (const [key, draft] of this.drafts) if (draft.run === run) this.drafts.delete(key);
  }

  _add(event, type, facts) {
    const item = { key: `${event.seq}-${this.items.length}`, seq: event.seq, at: event.at, run: event.run_id, type };
    Object.assign(item, { version: 0, undone: false, step: event.step }, facts);
    this.items.push(item);
    return item;
  }

  _mark(event, tone, text, more = {}) {
    this._add(event, "mark", { tone, text, kind: event.kind, ...more });
    this.marks.push({ at: event.at, kind: event.kind, text, run: event.run_id });
  }

  _runStarted(event, payload) {
    for (const run of this.runs.values()) if (run.status === "waiting") run.status = "done"; // this run continues it
    const run = { id: event.run_id, agent: payload.agent ?? "", parent: payload.parent ?? null, undoes: payload.undoes ?? null };
    this.runs.set(event.run_id, { ...run, at: event.at, ended: null, status: "running", spans: [] });
    if (event.message) {
      const items = this._request(event, event.message);
      this._prompts.set(event.run_id, items);
    }
  }

  _ran(event, status) {
    const run = this.runs.get(event.run_id);
    if (!run) return;
    run.status = status;
    run.ended = event.at;
    for (const span of run.spans) if (span.end === null) Object.assign(span, { end: event.at, state: status });
  }

  _cutOff(id, event) {
    this._dropDrafts(id);
    const run = this.runs.get(id);
    if (!run) return;
    Object.assign(run, { status: "cut off", ended: event.at });
    for (const span of run.spans) if (span.end === null) Object.assign(span, { end: event.at, state: "cut off" });
  }

  _open(event, kind, label, call = null) {
    const span = { seq: event.seq, run: event.run_id, step: event.step, kind, label, call };
    this.runs.get(event.run_id)?.spans.push({ ...span, start: event.at, end: null, state: "running", item: null });
  }

  _close(event, kind, state, label, call = null) {
    const spans = this.runs.get(event.run_id)?.spans ?? [];
    const span = spans.findLast((one) => one.kind === kind && one.end === null && (call === null || one.call === call));
    if (!span) return;
    Object.assign(span, { end: event.at, state });
    if (label) span.label = label;
  }

  _count({ usage, cost }) {
    this.usage.requests++;
    this.usage.input += usage?.input_tokens ?? 0;
    this.usage.output += usage?.output_tokens ?? 0;
    const price = cost ?? usage?.cost;
    if (price !== null && price !== undefined) this.usage.cost = (this.usage.cost ?? 0) + Number(price.total ?? price);
  }

  _message(event) {
    const message = event.message;
    if (!message || !Array.isArray(message.parts)) return;
    const early = this._prompts.get(event.run_id);
    if (early && message.kind === "request") {
      // The prompt was shown when the run started; now it is in the history.
      this.items = this.items.filter((item) => !early.includes(item));
      for (const [key, item] of this._items) if (early.includes(item)) this._items.delete(key);
      this._prompts.delete(event.run_id);
    }
    const last = this.items.length;
    const items = message.kind === "response" ? [this._response(event, message)] : this._request(event, message);
    const repeated = items.filter((item) => this.items.indexOf(item, last) < 0);
    const place = repeated.length ? this._path.findIndex((before) => before.some((item) => repeated.includes(item))) : -1;
    if (place >= 0) this._path.length = place; // the history differs from here on
    this._path.push(items);
  }

  _response(event, message) {
    this._dropDrafts(event.run_id);
    const key = message.timestamp ? `${message.run_id}/${message.timestamp}` : null;
    const before = this._again(key);
    if (before) return before;
    const parts = message.parts.map((part) => {
      if (part.part_kind !== "tool-call") return { kind: part.part_kind, text: part.content, part };
      const call = { id: part.tool_call_id, tool: part.tool_name, arguments: part.args, run: event.run_id, session: this.session };
      Object.assign(call, { state: "planned", started: null, ended: null, startedIn: null, endedIn: null, result: undefined });
      this._calls.set(call.id, call);
      return { kind: "call", call };
    });
    const item = this._add(event, "answer", { parts });
    if (key) this._items.set(key, item);
    for (const part of parts) if (part.call) part.call.item = item;
    const spans = this.runs.get(event.run_id)?.spans ?? [];
    const span = spans.findLast((one) => one.kind === "model");
    if (span && span.item === null) span.item = item;
    return item;
  }

  // The text of a response that was stopped. It belongs to the last message of the history, and is undone with it.
  _partial(event, payload) {
    this._dropDrafts(event.run_id);
    const parts = (payload.parts ?? []).map((part) => ({ kind: part.part_kind, text: part.content, part }));
    const item = this._add(event, "answer", { parts, partial: true });
    this._path.at(-1)?.push(item);
  }

  _request(event, message) {
    const items = [];
    for (const part of message.parts) {
      if (part.part_kind === "user-prompt") {
        const key = part.timestamp ? `prompt/${part.timestamp}` : null;
        const item = this._again(key) ?? this._add(event, "user", { content: part.content });
        if (key) this._items.set(key, item);
        items.push(item);
      } else if (part.part_kind === "tool-return" || (part.part_kind === "retry-prompt" && part.tool_name)) {
        this._returned(event, part);
      }
    }
    return items;
  }

  _again(key) {
    const item = key === null ? undefined : this._items.get(key);
    if (item?.undone) {
      item.undone = false;
      item.version++;
    }
    return item;
  }

  // The last call with this id; the server numbers further attempts.
  callOf(id) {
    return this._calls.get(id) ?? this._calls.get(String(id).replace(/~\d+$/, ""));
  }

  _toolCall(event, payload) {
    const call = this.callOf(payload.call_id);
    const ended = event.kind !== "tool_call_started";
    const failed = event.kind === "tool_call_failed";
    if (ended) this._close(event, "tool", failed ? "failed" : "done", payload.tool, payload.call_id);
    else this._open(event, "tool", payload.tool, payload.call_id);
    if (!ended && call) {
      const span = this.runs.get(event.run_id)?.spans.at(-1);
      if (span) span.item = call.item;
    }
    if (!call) return;
    if (!ended) Object.assign(call, { state: "running", started: event.at, startedIn: event.run_id, ended: null });
    else if (call.startedIn && call.startedIn !== event.run_id && !payload.answered && !payload.manual) {
      // A run that did not start the call reports its end: from the record, or as unknown.
      call.state = call.ended !== null ? "replayed" : "unknown";
    } else {
      Object.assign(call, { state: failed ? "failed" : "done", ended: event.at, endedIn: event.run_id });
      if (payload.error) call.error = payload.error;
      if (payload.manual) call.manual = true;
    }
    call.item.version++;
  }

  // A step belongs to a tool call, or to the turn of a plain agent.
  _step(event, payload) {
    const entry = String(payload.call_id);
    const call = this.callOf(entry.split("/")[0]);
    const run = this.runs.get(event.run_id);
    const owner = call ?? (run && (run.steps ??= { item: this._add(event, "steps", { steps: new Map() }) }));
    if (!owner) return;
    const steps = call ? (call.steps ??= new Map()) : owner.item.steps;
    const step = steps.get(entry) ?? { entry, name: payload.name, state: "running", depth: entry.split("/").length - 2, attempt: 1 };
    if (!steps.has(entry)) this._steps.push({ entry, run: event.run_id, step, owner });
    steps.set(entry, step);
    if (payload.undo) step.undo = payload.undo;
    if (event.kind === "step_failed" && !payload.retry_at) this.undoable.delete(entry);
    else if (step.undo) this.undoable.add(entry);
    if (event.kind === "step_started") {
      Object.assign(step, { state: "running", started: event.at, ended: null, attempt: payload.attempt ?? 1 });
      if (!call) this._open(event, "tool", payload.name, entry);
    } else if (event.kind === "probe_answered") {
      step.probe = payload.answer.replace("_", " ");
      if (payload.answer === "unknown") step.state = "unknown";
    } else {
      const state = event.kind === "step_completed" ? "done" : payload.retry_at ? "waiting" : "failed";
      Object.assign(step, { state, ended: event.at, error: payload.error ?? null });
      if (!call) this._close(event, "tool", state, payload.name, entry);
    }
    owner.item.version++;
  }

  // The undo of a step. It belongs to the turn whose last run its own run names.
  _undo(event, payload) {
    const runs = [...this.runs.keys()];
    const undoes = this.runs.get(event.run_id)?.undoes;
    const last = undoes ? runs.indexOf(undoes) : runs.length;
    const found = this._steps.findLast(({ entry, run }) => entry === payload.undoes && runs.indexOf(run) <= last);
    if (event.kind === "effect_undone") this.undoable.delete(payload.undoes);
    if (!found) return;
    const { step, owner } = found;
    if (event.kind === "undo_started") step.state = "undoing";
    else step.state = event.kind === "effect_undone" ? "undone" : payload.retry_at ? "undoing" : "undo failed";
    step.error = payload.error ?? null;
    owner.item.version++;
  }

  _leaveUndo(event) {
    if (!this.runs.get(event.run_id)?.undoes) return;
    for (const { step, owner } of this._steps) {
      if (step.state !== "undoing") continue;
      step.state = "undo unknown";
      owner.item.version++;
    }
  }

  _waits(id) {
    const call = this.callOf(id);
    if (!call) return;
    call.state = "waiting";
    call.item.version++;
  }

  _answered(event, payload) {
    const call = this.callOf(payload.call_id);
    if (!call) return;
    call.answer = { approved: payload.approved, by: payload.by ?? null, at: event.at, edited: payload.arguments !== undefined };
    if (payload.approved) call.state = "planned";
    call.item.version++;
  }

  _isTurn(payload) {
    return ["message", "retry"].includes(this._kinds.get(payload.submission_id));
  }

  _isRefused(event, payload) {
    return this._kinds.get(payload.submission_id) === "retry" && !event.run_id;
  }

  _failed(event, payload) {
    const reason = payload.reason ?? payload.state;
    this.failures.set(payload.submission_id, reason);
    const shown = this.items.some((item) => item.kind === "run_failed" && item.run === event.run_id);
    if (reason === "interrupted" || shown) return;
    const kind = this._kinds.get(payload.submission_id) ?? "submission";
    if (kind === "approval") {
      this._mark(event, "note", `An answer was rejected: ${plainly(reason)}`); // its card shows the form again
      return;
    }
    // Without a run, the message is not in the conversation.
    const submission = kind === "message" && event.run_id === null ? payload.submission_id : null;
    this._mark(event, "bad", `The ${kind === "compact" ? "compaction" : kind.replaceAll("_", " ")} failed: ${plainly(reason)}`, { submission, session: this.session });
  }

  _returned(event, part) {
    const call = this.callOf(part.tool_call_id);
    const key = `result/${part.tool_call_id}/${part.timestamp}`;
    if (!call || this._items.has(key)) return;
    if (part.timestamp) this._items.set(key, call.item);
    call.result = part.content;
    if (part.outcome === "denied") call.state = "denied";
    else if (part.part_kind === "retry-prompt") call.state = "failed";
    else if (call.ended === null && call.started !== null) call.state = "unknown";
    else if (call.ended === null) call.state = "not run";
    else if (call.state === "done" && call.endedIn !== event.run_id) call.state = "replayed";
    call.item.version++;
  }

  _rewound(event, payload) {
    this.retriable = null;
    this._mark(event, "note", payload.by === "undo" ? "Undone." : "Rewound to an earlier point.");
    if (typeof payload.length !== "number") return;
    for (const items of this._path.splice(payload.length)) {
      for (const item of items) {
        item.undone = true;
        item.version++;
      }
    }
  }
}
