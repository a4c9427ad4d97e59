import { HoldfastError } from "./errors.js";
import type {
  ApprovalRequest,
  ConversationEntry,
  ContentMessage,
  DraftText,
  HistoryMessage,
  NewSubmission,
  SessionDetail,
  SessionInfo,
  SubmissionDetail,
  SubmissionInfo,
} from "./models.js";
import { follow, type SessionEvent } from "./stream.js";
import type { Transport } from "./transport.js";
import { TurnHandle } from "./turn.js";

export interface SendOptions {
  /** If a turn is running: queue the message, steer or interrupt the running turn with it, or reject it. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second message with the same key is not queued; the first one is returned. */
  idempotency_key?: string;
}

export interface EventOptions {
  /** Start after the event with this number. */
  after?: number;
  /** Ends the stream. */
  signal?: AbortSignal;
}

export interface Decision {
  /** Run the tool with these arguments, if the tool is editable. */
  arguments?: Record<string, unknown>;
  /** The reason. The model receives the reason for a denial. */
  feedback?: string;
}

/** One session. A handle holds no connection: any number of handles, in any process, can use the same session. */
export class SessionHandle {
  private readonly path: string;

  constructor(
    private readonly transport: Transport,
    readonly id: string,
  ) {
    this.path = `/api/sessions/${encodeURIComponent(id)}`;
  }

  /** Return the session as it is now, with the tool calls that wait for a decision in `approvals`. */
  info(): Promise<SessionDetail> {
    return this.transport.call("GET", this.path);
  }

  /** Send a message: text, or parts of content. When this returns, the message is durable. */
  send(content: string | ContentMessage["content"], options: SendOptions = {}): Promise<TurnHandle> {
    return this.submit(typeof content === "string" ? { text: content, ...options } : { content, ...options });
  }

  /** Submit a message or another request, with the fields that the server documents. */
  async submit(submission: NewSubmission): Promise<TurnHandle> {
    return this.accept("submissions", submission);
  }

  /** Return a handle on a message that was sent earlier. */
  async turn(id: string): Promise<TurnHandle> {
    const accepted: SubmissionInfo = await this.transport.call("GET", `${this.path}/submissions/${encodeURIComponent(id)}`);
    return new TurnHandle(this.transport, accepted);
  }

  /** Yield the messages and commands that were sent to the session, oldest first. */
  submissions(
    filter: { state?: SubmissionInfo["state"]; payloads?: boolean } = {},
  ): AsyncGenerator<SubmissionDetail, void, undefined> {
    return this.transport.items(`${this.path}/submissions`, { ...filter });
  }

  /** Yield the history that the next message continues from, as Pydantic AI serializes its messages. */
  async *messages(): AsyncGenerator<Record<string, unknown>, void, undefined> {
    for await (const { message } of this.transport.items<HistoryMessage>(`${this.path}/messages`, {}, "after")) {
      yield message as Record<string, unknown>;
    }
  }

  /** Yield the conversation of another framework's session. Unrecognized entries have the role `other`. */
  conversation(): AsyncGenerator<ConversationEntry, void, undefined> {
    return this.transport.items(`${this.path}/conversation`, {});
  }

  /**
   * Yield every event after number `after` exactly once: first recorded events, then new ones as they occur.
   *
   * The stream resumes automatically after a lost connection or a restarted server, and ends when the session is erased. With `drafts` it
   * also yields the text that the model is streaming, as a `DraftText`, which has no `seq`.
   */
  events(options: EventOptions & { drafts: true }): AsyncGenerator<SessionEvent | DraftText, void, undefined>;
  events(options?: EventOptions): AsyncGenerator<SessionEvent, void, undefined>;
  async *events({ after = 0, signal, drafts = false }: EventOptions & { drafts?: boolean } = {}) {
    for await (const event of follow(this.transport, `${this.path}/events`, after, signal)) {
      if (drafts || "seq" in event) yield event;
    }
  }

  /** Stop the running or waiting turn. The next message continues from there. */
  interrupt(): Promise<TurnHandle> {
    return this.accept("interrupt");
  }

  /** Dismiss the failure of the last turn: the session is idle again. If it is not failed, nothing changes. */
  dismiss(): Promise<SessionInfo> {
    return this.transport.call("POST", `${this.path}/dismiss`);
  }

  /** Return the tool calls that wait for a decision. */
  async approvals(): Promise<ApprovalRequest[]> {
    return (await this.info()).approvals ?? [];
  }

  /** Approve a tool call that waits for a decision. `call` is the request, or the id of the call. */
  approve(call: string | ApprovalRequest, decision: Decision = {}): Promise<TurnHandle> {
    return this.decide(call, { ...decision, approved: true });
  }

  /** Deny a tool call that waits for a decision. */
  deny(call: string | ApprovalRequest, decision: Pick<Decision, "feedback"> = {}): Promise<TurnHandle> {
    return this.decide(call, { ...decision, approved: false });
  }

  private async decide(call: string | ApprovalRequest, decision: Decision & { approved: boolean }): Promise<TurnHandle> {
    const request = typeof call === "string" ? (await this.approvals()).find((each) => each.call_id === call) : call;
    if (request === undefined) {
      const problem = `call '${call}' of session ${this.id} does not wait for a decision`;
      throw new HoldfastError("conflict", `Conflict: ${problem}.`, { problem });
    }
    return this.accept("approvals", { call_id: request.call_id, digest: request.digest, ...decision });
  }

  private async accept(action: string, json?: unknown): Promise<TurnHandle> {
    return new TurnHandle(this.transport, await this.transport.call("POST", `${this.path}/${action}`, { json }));
  }
}
