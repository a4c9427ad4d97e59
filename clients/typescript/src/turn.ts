import { ApprovalNeeded, TurnFailed } from "./errors.js";
import type { ApprovalRequest, DraftText, SessionDetail, SubmissionInfo } from "./models.js";
import { follow, type SessionEvent } from "./stream.js";
import type { Transport } from "./transport.js";

export interface WaitOptions {
  /** Ends the wait, for example `AbortSignal.timeout(60_000)`. The turn continues. */
  signal?: AbortSignal;
}

/** An accepted submission. It is durable: it ends, or visibly waits, even if this process exits. */
export class TurnHandle {
  /** The id of the submission. */
  readonly id: string;
  readonly session_id: string;
  /** The number of the event that queued it. Its own events follow. */
  readonly position: number;
  private readonly session: string;

  constructor(
    private readonly transport: Transport,
    accepted: SubmissionInfo,
  ) {
    this.id = accepted.submission_id;
    this.session_id = accepted.session_id;
    this.position = accepted.position;
    this.session = `/api/sessions/${encodeURIComponent(accepted.session_id)}`;
  }

  /** Return the state of the submission. */
  info(): Promise<SubmissionInfo> {
    return this.transport.call("GET", `${this.session}/submissions/${this.id}`);
  }

  /** Yield the session's events from the moment this submission was queued until it ends. */
  events(options: WaitOptions & { drafts: true }): AsyncGenerator<SessionEvent | DraftText, void, undefined>;
  events(options?: WaitOptions): AsyncGenerator<SessionEvent, void, undefined>;
  async *events({ signal, drafts = false }: WaitOptions & { drafts?: boolean } = {}) {
    for await (const event of follow(this.transport, `${this.session}/events`, this.position, signal)) {
      if (drafts || "seq" in event) yield event;
      if ("seq" in event && this.isEnd(event)) return;
    }
  }

  /** Wait until the submission has ended, or waits for a person, and return its state. */
  async wait(options: WaitOptions = {}): Promise<SubmissionInfo> {
    await this.end(options);
    return this.transport.patiently(`${this.session}/submissions/${this.id}`, options.signal);
  }

  /**
   * Wait until the submission has ended, and return the output of the agent: text, or the serialized value of its output type.
   *
   * Throws `TurnFailed` if it failed, and `ApprovalNeeded` if it waits for a person: decide, then call `result` again.
   */
  async result(options: WaitOptions = {}): Promise<unknown> {
    const { failed, calls, output } = await this.end(options);
    if (failed !== undefined) {
      const { state, reason } = failed.payload as { state: string; reason?: string | null };
      throw new TurnFailed(this.id, this.session_id, state, reason ?? null);
    }
    if (calls !== undefined) throw new ApprovalNeeded(this.id, this.session_id, calls);
    return output;
  }

  /** Continue a turn that failed, was interrupted or was given up, and return a handle on the new attempt. Recorded tool calls are not repeated. */
  async retry(options: { from_step?: string } = {}): Promise<TurnHandle> {
    const json = { submission_id: this.id, ...options };
    return new TurnHandle(this.transport, await this.transport.call("POST", `${this.session}/retry`, { json }));
  }

  /** Stop the turn if it is running or waiting, or remove it from the queue if it has not started. */
  async cancel(): Promise<void> {
    await this.transport.call("POST", `${this.session}/interrupt`, { json: { submission_id: this.id } });
  }

  private isEnd({ kind, payload }: SessionEvent): boolean {
    return (kind === "submission_done" || kind === "submission_failed") && payload["submission_id"] === this.id;
  }

  private async end(options: WaitOptions): Promise<{ failed?: SessionEvent; calls?: ApprovalRequest[]; output?: unknown }> {
    let output: unknown = "";
    let newest = 0; // the last event there was when a question was read
    const questions = new OpenQuestions();
    const { signal } = options;
    for await (const event of this.events(options)) {
      questions.read(event);
      if (event.kind === "submission_started" && event.payload["submission_id"] === this.id) {
        output = ""; // earlier responses belong to another turn
      } else if (event.kind === "message") {
        output = textOf(event.message) ?? output;
      } else if (event.kind === "run_completed" && "output" in event.payload) {
        output = event.payload["output"];
      } else if (event.kind === "submission_failed" && this.isEnd(event)) {
        return { failed: event };
      } else if (event.kind === "approval_requested" && event.seq >= newest) {
        newest = (await this.transport.patiently<SessionDetail>(this.session, signal)).seq;
      }
      if (questions.areOpen && event.seq >= newest) {
        const path = `${this.session}/submissions/${this.id}`;
        const { state } = await this.transport.patiently<SubmissionInfo>(path, signal);
        if (state === "waiting") return { calls: questions.calls };
      }
    }
    return { output };
  }
}

/** The tool calls of a session that wait for a decision, as its events show them. */
class OpenQuestions {
  private asked = new Map<string, ApprovalRequest>();
  private onTheirWay = new Set<unknown>();

  /** Whether a decision is missing and not yet submitted. */
  get areOpen(): boolean {
    return this.asked.size > 0 && this.onTheirWay.size === 0;
  }

  get calls(): ApprovalRequest[] {
    return [...this.asked.values()];
  }

  read({ kind, payload }: SessionEvent): void {
    if (kind === "approval_requested") {
      this.asked = new Map((payload["calls"] as ApprovalRequest[]).map((call) => [call.call_id, call]));
    } else if (kind === "approval_answered") {
      this.asked.delete(payload["call_id"] as string);
    } else if (kind === "submission_queued" && (payload["kind"] === "approval" || payload["kind"] === "interrupt")) {
      this.onTheirWay.add(payload["submission_id"]);
    } else if (kind === "submission_done" || kind === "submission_failed") {
      this.onTheirWay.delete(payload["submission_id"]);
    }
  }
}

interface Part {
  part_kind: string;
  content?: unknown;
}

/** Return the text of a response of the model; undefined for any other message. Texts with other parts between them are paragraphs. */
function textOf(message: unknown): string | undefined {
  const { kind, parts } = (message ?? {}) as { kind?: string; parts?: Part[] };
  if (kind !== "response") return undefined;
  let text = "";
  let before: Part | undefined;
  for (const part of parts ?? []) {
    if (isText(part)) text += (text && before !== undefined && !isText(before) ? "\n\n" : "") + String(part.content);
    before = part;
  }
  return text;
}

function isText({ part_kind, content }: Part): boolean {
  return part_kind === "text" || (part_kind === "speech" && Boolean(content));
}
