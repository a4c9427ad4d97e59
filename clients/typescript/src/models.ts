// Written by scripts/make_typescript.py from the OpenAPI document of the server. Do not edit.

/** The agent state of a session, and its version. */
export interface AgentState {
  version: number;
  body: unknown;
}

/** A decision about a tool call. */
export interface ApprovalDecision {
  /** The tool call, from `approvals` of the session. */
  call_id: string;
  /** The digest of the call's arguments, from the same list. */
  digest: string;
  /** Whether the tool may run. */
  approved: boolean;
  /** The reason for a denial. The model receives it. */
  feedback?: string | null;
  /** Run the tool with these arguments instead. Only for tools that are `editable`. */
  arguments?: Record<string, unknown> | null;
}

/** A tool call that waits for a decision. The decision names its digest. */
export interface ApprovalRequest {
  /** The id of the call. */
  call_id: string;
  /** The name of the tool. */
  tool: string;
  /** The arguments of the call. */
  arguments: Record<string, unknown>;
  /** The digest of the arguments, which an answer must name. */
  digest: string;
  /** What to know before the decision, if the call was started before. */
  note?: string | null;
  /** The call or step that was started before. Settle it instead of a decision if you know its outcome. */
  unsettled?: UnsettledCall | null;
  /** The time before which the decision must be sent. For `remind`: the time of the next reminder. */
  deadline?: string | null;
  /** What happens at the deadline: `deny` or `approve` decides, `fail` ends the turn, `remind` only records a reminder. */
  default?: "deny" | "approve" | "fail" | "remind" | null;
  /** The seconds between reminders, if the default is `remind`. */
  interval?: number | null;
  /** Whether the call runs outside of the agent, and waits for its result instead of a decision. It can also be denied. */
  external?: boolean;
  /** The delegate that asks, if the question does not come from the session's own agent. */
  origin?: QuestionOrigin | null;
  /** How many reminders were recorded. */
  reminders?: number;
}

/** An entry of the audit log: the actor, the action, the session and the time. */
export interface AuditRecord {
  id: string;
  at: string;
  actor: string;
  action: string;
  session_id: string | null;
  detail: unknown;
}

/** A command that was started. */
export interface BashCommand {
  id: string;
  timestamp: string;
  kind?: "BashCommand";
  command: string;
  cwd: string | null;
  timeout: number;
}

/** A piece of a command's output. The last piece has the exit code. */
export interface BashOutput {
  id: string;
  timestamp: string;
  kind?: "BashOutput";
  command_id: string;
  order: number;
  exit_code: number | null;
  stdout: string | null;
  stderr: string | null;
}

/** One page of the log. */
export interface BashPage {
  items: Array<BashCommand | BashOutput>;
  next_page_id?: string | null;
}

/** A file in base64. */
export interface BinaryPart {
  kind: "binary";
  data: string;
  media_type: string;
  identifier?: string | null;
  vendor_metadata?: Record<string, unknown> | null;
}

/** A budget, and how many sessions check it again. */
export interface BudgetChanged {
  per: "turn" | "session" | "owner" | "agent" | "store";
  /** The id of the session, the owner or the agent; empty for the store. */
  name: string;
  daily: boolean;
  limits: BudgetLimits;
  used: BudgetLimits;
  /** How many sessions that waited for a budget check it again now. */
  woken: number;
}

/** A budget that an administrator has set, and what was used in the current period. */
export interface BudgetInfo {
  per: "turn" | "session" | "owner" | "agent" | "store";
  /** The id of the session, the owner or the agent; empty for the store. */
  name: string;
  daily: boolean;
  limits: BudgetLimits;
  used: BudgetLimits;
}

/** Limits, or what was used of them. Null means no limit. */
export interface BudgetLimits {
  requests: number | null;
  tokens: number | null;
  /** Dollars. */
  cost: number | null;
  seconds: number | null;
}

/** A marker up to which a provider may cache the prompt. */
export interface CachePart {
  kind: "cache-point";
  ttl?: "5m" | "1h";
}

/** The outcome of a call whose outcome is unknown: its result, or its error. */
export interface CallOutcome {
  /** The result of the call, as the tool would have returned it. */
  result?: unknown;
  /** The error. If given, the call counts as failed. */
  error?: string | null;
}

/** Request body of `useChat`. Only the last message counts; other fields are ignored. */
export interface ChatRequest {
  /** The id of the chat, which is the session. */
  id: string;
  /** The messages of the chat, in the form of the AI SDK. */
  messages: Array<Record<string, unknown>>;
  /** Whether the last message is new, or must be answered again. */
  trigger?: "submit-message" | "regenerate-message";
}

/** A point of the history from which a session can continue. */
export interface CheckpointInfo {
  id: string;
  session_id: string;
  run_id: string | null;
  kind: "settled" | "interrupted";
  step: number | null;
  length: number;
  seq: number;
  at: string | null;
}

/** The options of a clean. */
export interface CleanRequest {
  /** The minimum number of days that the session must have been idle. */
  idle_days?: number;
  /** Override the pending, cursor and idle checks. Sessions that are running or on hold are never cleaned. For administrators. */
  force?: boolean;
  /** Store a verified archive in the media store. */
  archive?: "media" | null;
  /** Only report what would be deleted. */
  dry_run?: boolean;
}

/** The result of a clean. */
export interface CleanResult {
  session_id: string;
  cleaned_at: string | null;
  archive: string | null;
  deleted: Record<string, number>;
  dry_run: boolean;
  /** Whether files of a mirror are not deleted yet. A worker with the mirror deletes them. */
  files_pending?: boolean;
}

/** The number of deleted entries. */
export interface Cleared {
  cleared_count: number;
}

/** The state of a command. It is kept after its output is purged. */
export interface CommandResult {
  id: string;
  state: "running" | "done" | "timed_out" | "stopped" | "killed" | "lost";
  exit_code: number | null;
  stdout_bytes: number;
  stderr_bytes: number;
  left_out_bytes: number;
  session_id: string | null;
  started_at: string | null;
  ended_at: string | null;
}

/** A message of several parts: text and files. */
export interface ContentMessage {
  /** If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second submission with the same key is not queued; the first one is returned. */
  idempotency_key?: string | null;
  /** The time from which a worker may start it, with a time zone; by default now. At most ten years ahead. */
  deliver_at?: string | null;
  /** The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions. */
  priority?: "low" | "normal" | "high";
  kind?: "message";
  /** The parts of the message. */
  content: Array<string | PlainTextPart | TextContentPart | FilePart | BinaryPart | CachePart>;
}

/** One entry of the conversation of another framework's session. */
export interface ConversationEntry {
  key: string;
  /** `other` for an unrecognized entry. */
  role: "user" | "assistant" | "tool" | "system" | "other";
  /** The readable text of the entry. Text of more than 256 Ki characters is cut; `body` has the complete content. */
  text: string;
  /** The entry as the framework stored it. */
  body: unknown;
}

/** A credential, without its value. */
export interface CredentialInfo {
  name: string;
  expires_at: string | null;
}

/** One notice for one subscription. */
export interface DeliveryInfo {
  /** The `webhook-id` of the request; the same for each attempt. */
  id: string;
  subscription_id: string;
  /** Empty if the notice is about no session. */
  session_id: string;
  /** The number of the event that it announces. */
  seq: number;
  kind: "waiting" | "done" | "failed" | "given_up" | "budget_reached" | "retention_due" | "worker_lost" | "test";
  /** The time of the event. */
  at: string;
  state: "pending" | "delivered" | "undeliverable";
  attempts: number;
  /** What happened in the last attempt. */
  result: string | null;
  /** The time of the next attempt; null if there is none, or if an earlier delivery of the session comes first. */
  due_at: string | null;
  ended_at: string | null;
}

/** Text that the model is streaming now. It is not durable, and has no number: the complete message follows as an event. `text` continues the earlier text at `offset`. At offset 0, the text starts again. */
export interface DraftText {
  run_id: string;
  part: number;
  kind: string;
  offset: number;
  text: string;
}

/** The ledger entry of one tool call, step, or undo of a step. */
export interface EffectInfo {
  run_id: string;
  call_id: string;
  tool: string;
  state: "started" | "completed" | "failed";
  step: number | null;
  attempts: number;
  arguments_digest: string | null;
  idempotency_key: string | null;
  summary: string | null;
  /** The function that undoes the step. */
  undo?: string | null;
  /** The call id of the step that this entry is the undo of. The step is undone when this is completed. */
  undoes?: string | null;
  error: string | null;
  result?: unknown;
  started_at: string | null;
  ended_at: string | null;
}

/** The result of an erasure. */
export interface EraseResult {
  session_id: string;
  erased_at: string;
  deleted: Record<string, number>;
  children: Array<string>;
  /** Whether files of a mirror are not deleted yet. A worker with the mirror deletes them. */
  files_pending?: boolean;
}

/** Every error has this shape. */
export interface ErrorBody {
  error: ErrorDetail;
}

/** The error: a fixed code and facts for programs, and a message for people. */
export interface ErrorDetail {
  code: string;
  message: string;
  /** The values in the message, such as `holder` and `until`, or `size` and `limit`. */
  facts: Record<string, unknown>;
}

/** One entry of a session's journal. */
export interface EventInfo {
  seq: number;
  kind: string;
  run_id: string | null;
  step: number | null;
  at: string;
  payload: unknown;
  /** The message that the event refers to, if any. */
  message?: unknown;
}

/** A file at a public address. */
export interface FilePart {
  kind: "image-url" | "audio-url" | "video-url" | "document-url";
  url: string;
  media_type?: string | null;
  identifier?: string | null;
  vendor_metadata?: Record<string, unknown> | null;
  force_download?: false;
}

/** Copy the history into a new session. */
export interface Fork {
  /** If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second submission with the same key is not queued; the first one is returned. */
  idempotency_key?: string | null;
  /** The time from which a worker may start it, with a time zone; by default now. At most ten years ahead. */
  deliver_at?: string | null;
  /** The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions. */
  priority?: "low" | "normal" | "high";
  kind: "fork";
  /** The checkpoint to copy; by default the latest. */
  checkpoint_id?: string | null;
  /** The id of the new session; by default it is generated. */
  session_id?: string | null;
}

/** The checkpoint and the new session id of a fork. */
export interface ForkTarget {
  /** The checkpoint to copy; by default the latest. */
  checkpoint_id?: string | null;
  /** The id of the new session; by default it is generated. */
  session_id?: string | null;
}

/** The health of the server. */
export interface Health {
  status: "ok" | "unavailable";
  problem?: string | null;
}

/** A command on the history or on the session. */
export interface HistoryCommand {
  /** If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second submission with the same key is not queued; the first one is returned. */
  idempotency_key?: string | null;
  /** The time from which a worker may start it, with a time zone; by default now. At most ten years ahead. */
  deliver_at?: string | null;
  /** The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions. */
  priority?: "low" | "normal" | "high";
  kind: "undo" | "compact" | "shutdown";
}

/** One message of the history, in the format of Pydantic AI. */
export interface HistoryMessage {
  position: number;
  message: unknown;
}

/** The sessions that wait for a person. */
export interface Inbox {
  items: Array<InboxItem>;
  /** Whether there are more waiting sessions than returned. */
  more: boolean;
}

/** A session that waits for a person: for an answer, a worker, a resume, the outcome of a call, or because its last turn failed. */
export interface InboxItem {
  id: string;
  agent: string;
  owner: string;
  title: string;
  status: "idle" | "queued" | "running" | "waiting" | "sleeping" | "cleaning" | "cleaned" | "moved" | "failed";
  /** The tool calls that wait for an answer; `worker`: no live worker serves the agent; `limit`: the owner runs as many sessions as allowed; `resume`: the last run ended with its process. */
  waiting_for: string | null;
  /** The reason why the last turn failed, if the status is `failed`. At most 1,000 characters. */
  error?: string | null;
  /** The name of the worker that is running the session. */
  holder: string | null;
  held_until: string | null;
  /** The number of the session's last event. */
  seq: number;
  pending: number;
  hold: boolean;
  created_at: string;
  active_at: string;
  cleaned_at: string | null;
  /** The session that delegated to this one. */
  parent_id: string | null;
  metadata: Record<string, unknown>;
  /** The reason why no worker continues the session, and the remedy, if `waiting_for` is `worker`, `limit` or `resume`. */
  problem?: string | null;
  approvals?: Array<ApprovalRequest>;
  /** The tool calls whose outcome is unknown. */
  effects?: Array<EffectInfo>;
}

/** The submission to cancel. A running or waiting turn is stopped; a queued submission is removed. */
export interface InterruptTarget {
  /** The submission to cancel; by default the running turn. */
  submission_id?: string | null;
}

export interface AuditRecordItems {
  items: Array<AuditRecord>;
  next_cursor?: string | null;
}

export interface BashOutputItems {
  items: Array<BashOutput>;
  next_cursor?: string | null;
}

export interface BudgetInfoItems {
  items: Array<BudgetInfo>;
  next_cursor?: string | null;
}

export interface CheckpointInfoItems {
  items: Array<CheckpointInfo>;
  next_cursor?: string | null;
}

export interface ConversationEntryItems {
  items: Array<ConversationEntry>;
  next_cursor?: string | null;
}

export interface CredentialInfoItems {
  items: Array<CredentialInfo>;
  next_cursor?: string | null;
}

export interface DeliveryInfoItems {
  items: Array<DeliveryInfo>;
  next_cursor?: string | null;
}

export interface EffectInfoItems {
  items: Array<EffectInfo>;
  next_cursor?: string | null;
}

export interface EventInfoItems {
  items: Array<EventInfo>;
  next_cursor?: string | null;
}

export interface HistoryMessageItems {
  items: Array<HistoryMessage>;
  next_cursor?: string | null;
}

export interface ReadCursorItems {
  items: Array<ReadCursor>;
  next_cursor?: string | null;
}

export interface RecordInfoItems {
  items: Array<RecordInfo>;
  next_cursor?: string | null;
}

export interface RunInfoItems {
  items: Array<RunInfo>;
  next_cursor?: string | null;
}

export interface ScheduleInfoItems {
  items: Array<ScheduleInfo>;
  next_cursor?: string | null;
}

export interface SessionCommandItems {
  items: Array<SessionCommand>;
  next_cursor?: string | null;
}

export interface SessionInfoItems {
  items: Array<SessionInfo>;
  next_cursor?: string | null;
}

export interface SubmissionDetailItems {
  items: Array<SubmissionDetail>;
  next_cursor?: string | null;
}

export interface SubscriptionInfoItems {
  items: Array<SubscriptionInfo>;
  next_cursor?: string | null;
}

export interface UsageInfoItems {
  items: Array<UsageInfo>;
  next_cursor?: string | null;
}

export interface WorkerInfoItems {
  items: Array<WorkerInfo>;
  next_cursor?: string | null;
}

/** Your identity and rights on the server. */
export interface Me {
  owner: string;
  role: "user" | "admin";
  scopes: Array<string>;
  /** The agents for which you can create sessions. */
  agents: Array<string>;
  /** Whether this is `holdfast demo`, where a worker can be killed. */
  demo?: boolean;
}

/** A budget for one session, the turns of one session, an owner, an agent or the store. Without any limit it is removed. */
export interface NewBudget {
  /** Completed model requests. */
  requests?: number | null;
  /** Input and output tokens. */
  tokens?: number | null;
  /** Dollars. Requests without a known price cost 0. */
  cost?: number | null;
  /** How long runs work. */
  seconds?: number | null;
  /** Whose use is added up. */
  per: "turn" | "session" | "owner" | "agent" | "store";
  /** The id of the session, the owner or the agent; none for the store. */
  name?: string | null;
  /** Whether it begins again each day, in UTC. */
  daily?: boolean;
}

/** A command to run. Unknown fields are ignored, because clients of other agent servers may send more. */
export interface NewCommand {
  /** The command line for bash. */
  command: string;
  /** The working directory, relative to the server's working directory. */
  cwd?: string | null;
  /** The time limit in seconds. The command is then stopped. */
  timeout?: number;
  /** The session that the command belongs to. The command is deleted with the session. */
  session_id?: string | null;
}

/** A credential to store. It cannot be read back. */
export interface NewCredential {
  /** The secret. It is encrypted before it is stored. */
  value: string;
  /** Seconds after which the credential is deleted; by default it is kept. */
  ttl?: number | null;
}

/** The position of a consumer in the events. */
export interface NewCursor {
  /** The number of the last event that the consumer has read. */
  seq: number;
}

/** A schedule to create, for one of your sessions, or for an agent, which then gets a new session for each tick. */
export interface NewSchedule {
  /** Five fields: minute, hour, day of the month, month, day of the week. */
  cron: string;
  /** The time zone of the times, such as Europe/Berlin. */
  timezone?: string;
  /** The text of the message. */
  text: string;
  /** The agent of the new session of each tick. */
  agent?: string | null;
  /** The session, instead of a new one for each tick. */
  session_id?: string | null;
  /** By default the first line of the text. New sessions have this title. */
  title?: string;
  /** If the turn of the previous tick has not ended: skip this tick, queue its message, or interrupt that turn. */
  overlap?: "skip" | "queue" | "interrupt";
  /** After a time without workers: submit `once`, submit `all` missed ticks up to `catch_up_limit`, or `none` of those that are more than a minute late. */
  catch_up?: "once" | "all" | "none";
  /** With `catch_up` all: how many missed ticks to submit, the latest ones. */
  catch_up_limit?: number;
  /** The id of the schedule. By default a new one is generated. */
  id?: string | null;
  /** The owner, if not you. For administrators. */
  owner?: string | null;
}

/** A new secret for a subscription. */
export interface NewSecret {
  /** whsec_ and 24 to 64 bytes in Base64. By default a new one is generated. */
  secret?: string | null;
}

/** A session to create. */
export interface NewSession {
  /** The name of the agent that runs the session. */
  agent: string;
  /** The id of the session. By default a new one is generated. */
  id?: string | null;
  /** By default the first line of the first message. */
  title?: string;
  /** Your own keys. Reserved: `model` (one of the agent's models) and `attached` (`true`, or an object with `grace` in seconds, at least 1, and `on_unwatched`: `handover` or `interrupt`), and `budgets` (a list, per `turn` or `session`). */
  metadata?: Record<string, unknown>;
  /** The owner, if not you. For administrators. */
  owner?: string | null;
}

/** A new agent state, and the version it replaces. */
export interface NewState {
  /** The new state: any JSON value. */
  body: unknown;
  /** The version that the new state replaces; 0 if there is none. If the current version differs, the response is 409. */
  expected_version: number;
}

export type NewSubmission = TextMessage | ContentMessage | HistoryCommand | Rewind | RetryTurn | Fork;

/** A subscription to create. */
export interface NewSubscription {
  /** The https URL of your webhook. */
  url: string;
  /** The kinds of notices to send. `worker_lost` requires `everyone`. */
  kinds: Array<"waiting" | "done" | "failed" | "given_up" | "budget_reached" | "retention_due" | "worker_lost">;
  /** Only sessions of these agents; by default of all. */
  agents?: Array<string>;
  /** Only these sessions; by default all. */
  sessions?: Array<string>;
  /** Whether to include texts of the session: its title, questions, output and the reasons of failures. */
  content?: boolean;
  /** Whether it applies to the sessions of all owners. For administrators. */
  everyone?: boolean;
  /** The secret that signs deliveries: whsec_ and 24 to 64 bytes in Base64. By default a new one is generated. */
  secret?: string | null;
  /** The owner, if not you. For administrators. */
  owner?: string | null;
}

/** Text in the format of OpenAI's clients. Equivalent to a plain string. */
export interface PlainTextPart {
  type: "text";
  text: string;
}

/** The delegate that asks a question: its session and run, its own id of the call, and the agents from the session's tool to it. */
export interface QuestionOrigin {
  session_id: string;
  run_id: string;
  call_id: string;
  agents: Array<string>;
}

/** The position of a consumer in the events. */
export interface ReadCursor {
  consumer: string;
  seq: number;
  at: string;
}

/** A keyed row of a session of another framework. */
export interface RecordInfo {
  kind: string;
  key: string;
  /** The content, exactly as it is stored. */
  body: unknown;
}

/** The result of a rehydration. */
export interface RehydrateResult {
  session_id: string;
  archive_sha256: string;
  /** The number of restored records by kind. */
  restored: Record<string, number>;
}

/** The retention policy of a session, and when it is due. */
export interface RetentionStatus {
  session_id: string;
  /** The first matching policy. Null if no policy matches. */
  policy: string | null;
  action: "clean" | "archive" | "erase" | null;
  idle_days: number | null;
  max_age_days: number | null;
  keep_last_runs: number | null;
  /** When the session was last restored from an archive. */
  rehydrated_at: string | null;
  /** The earliest time at which the session is due. Null if never. */
  due_at: string | null;
  held_by: "session" | "policy" | null;
  /** The check that currently prevents the action. */
  guard: string | null;
  /** A description of that check, and how to satisfy it. */
  problem: string | null;
  cleaned_at: string | null;
  archive: string | null;
}

/** The turn to continue. */
export interface RetryTarget {
  /** The submission of the turn that failed. */
  submission_id: string;
  /** For a plain agent: the call id of a step. That step and all later ones are repeated, even if the turn is done. */
  from_step?: string | null;
}

/** Continue a turn that failed, was interrupted or was given up. */
export interface RetryTurn {
  /** If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second submission with the same key is not queued; the first one is returned. */
  idempotency_key?: string | null;
  /** The time from which a worker may start it, with a time zone; by default now. At most ten years ahead. */
  deliver_at?: string | null;
  /** The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions. */
  priority?: "low" | "normal" | "high";
  kind: "retry";
  /** The turn to continue. */
  submission_id: string;
  /** For a plain agent: the call id of a step. That step and all later ones are repeated, even if the turn is done. */
  from_step?: string | null;
}

/** Continue from an earlier checkpoint. */
export interface Rewind {
  /** If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second submission with the same key is not queued; the first one is returned. */
  idempotency_key?: string | null;
  /** The time from which a worker may start it, with a time zone; by default now. At most ten years ahead. */
  deliver_at?: string | null;
  /** The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions. */
  priority?: "low" | "normal" | "high";
  kind: "rewind";
  /** The checkpoint to continue from. */
  checkpoint_id: string;
}

/** The checkpoint to continue from. */
export interface RewindTarget {
  /** The checkpoint to continue from. */
  checkpoint_id: string;
}

/** One execution of the agent loop. */
export interface RunInfo {
  id: string;
  session_id: string;
  agent: string;
  status: "running" | "completed" | "failed" | "interrupted" | "waiting";
  parent_id: string | null;
  error: string | null;
  /** The number of the session's latest event after the write that recorded the start of the run. The runs of a session are listed in this order. */
  first_seq?: number;
  started_at: string | null;
  ended_at: string | null;
  metadata: Record<string, unknown>;
}

/** The changes to a schedule. Other fields stay as they are. */
export interface ScheduleChange {
  /** Five fields: minute, hour, day of the month, month, day of the week. */
  cron?: string | null;
  /** The time zone of the times, such as Europe/Berlin. */
  timezone?: string | null;
  /** The text of the message. */
  text?: string | null;
  /** By default the first line of the text. New sessions have this title. */
  title?: string | null;
  /** If the turn of the previous tick has not ended: skip this tick, queue its message, or interrupt that turn. */
  overlap?: "skip" | "queue" | "interrupt" | null;
  /** After a time without workers: submit `once`, submit `all` missed ticks up to `catch_up_limit`, or `none` of those that are more than a minute late. */
  catch_up?: "once" | "all" | "none" | null;
  /** With `catch_up` all: how many missed ticks to submit, the latest ones. */
  catch_up_limit?: number | null;
  /** Whether the schedule is paused. */
  paused?: boolean | null;
}

/** A schedule, its next tick, and the outcome of the last one. */
export interface ScheduleInfo {
  id: string;
  owner: string;
  agent: string;
  /** The session; null if each tick creates one. */
  session_id: string | null;
  title: string;
  text: string;
  cron: string;
  timezone: string;
  overlap: "skip" | "queue" | "interrupt";
  catch_up: "once" | "all" | "none";
  catch_up_limit: number;
  paused: boolean;
  /** Whether the schedule continues in another store. */
  moved: boolean;
  /** The next tick; null while the schedule is paused. */
  next_at: string | null;
  /** The last tick that was handled. */
  last_at: string | null;
  /** The reason if the last tick submitted nothing, or if the schedule was paused because it can no longer work. */
  problem: string | null;
  last_session_id: string | null;
  /** The last submission of the schedule. */
  last_submission_id: string | null;
  /** The state of the last submission; null if there is none, or if retention has deleted it. */
  last_state: "queued" | "claimed" | "waiting" | "done" | "failed" | "dead" | null;
  /** The reason if the last submission failed. */
  last_reason: string | null;
  created_at: string;
}

/** The next times of a schedule. If it is paused, those that it would have if it were resumed now. */
export interface ScheduleTimes {
  items: Array<string>;
}

/** The version of the server, in the format that clients of other agent servers expect. */
export interface ServerInfo {
  title?: string;
  version: string;
  /** Seconds since the server started. */
  uptime: number;
  /** Seconds since the last request with a token. */
  idle_time: number;
  docs?: string;
}

/** The changes to a session. */
export interface SessionChange {
  /** The new title. */
  title?: string | null;
  /** Whether the session is protected from retention. */
  hold?: boolean | null;
  /** The new metadata. It replaces the previous one. */
  metadata?: Record<string, unknown> | null;
}

/** A command of a session, and the tool call that started it. */
export interface SessionCommand {
  id: string;
  state: "running" | "done" | "timed_out" | "stopped" | "killed" | "lost";
  exit_code: number | null;
  stdout_bytes: number;
  stderr_bytes: number;
  left_out_bytes: number;
  session_id: string | null;
  started_at: string | null;
  ended_at: string | null;
  command: string;
  cwd: string | null;
  call_id: string | null;
  purged_at: string | null;
}

/** A session, the tool calls that wait for a decision, and the reason why the session waits. */
export interface SessionDetail {
  id: string;
  agent: string;
  owner: string;
  title: string;
  status: "idle" | "queued" | "running" | "waiting" | "sleeping" | "cleaning" | "cleaned" | "moved" | "failed";
  /** The tool calls that wait for an answer; `worker`: no live worker serves the agent; `limit`: the owner runs as many sessions as allowed; `resume`: the last run ended with its process. */
  waiting_for: string | null;
  /** The reason why the last turn failed, if the status is `failed`. At most 1,000 characters. */
  error?: string | null;
  /** The name of the worker that is running the session. */
  holder: string | null;
  held_until: string | null;
  /** The number of the session's last event. */
  seq: number;
  pending: number;
  hold: boolean;
  created_at: string;
  active_at: string;
  cleaned_at: string | null;
  /** The session that delegated to this one. */
  parent_id: string | null;
  metadata: Record<string, unknown>;
  /** The reason why no worker continues the session, and the remedy, if `waiting_for` is `worker`, `limit` or `resume`. */
  problem?: string | null;
  approvals?: Array<ApprovalRequest>;
}

/** One conversation with one agent. */
export interface SessionInfo {
  id: string;
  agent: string;
  owner: string;
  title: string;
  status: "idle" | "queued" | "running" | "waiting" | "sleeping" | "cleaning" | "cleaned" | "moved" | "failed";
  /** The tool calls that wait for an answer; `worker`: no live worker serves the agent; `limit`: the owner runs as many sessions as allowed; `resume`: the last run ended with its process. */
  waiting_for: string | null;
  /** The reason why the last turn failed, if the status is `failed`. At most 1,000 characters. */
  error?: string | null;
  /** The name of the worker that is running the session. */
  holder: string | null;
  held_until: string | null;
  /** The number of the session's last event. */
  seq: number;
  pending: number;
  hold: boolean;
  created_at: string;
  active_at: string;
  cleaned_at: string | null;
  /** The session that delegated to this one. */
  parent_id: string | null;
  metadata: Record<string, unknown>;
}

/** A signal to a session. */
export interface SignalBody {
  /** Any JSON value. The tool or agent that waits for the signal receives it. */
  data?: unknown;
  /** A second signal with the same key is not delivered; the first one is returned. */
  idempotency_key?: string | null;
}

/** The states of a session. */
export interface StateList {
  items: Array<StateVersion>;
}

/** One state of a session. */
export interface StateVersion {
  /** Null for the unnamed agent state. */
  name: string | null;
  version: number;
}

/** A submission with its payload. */
export interface SubmissionDetail {
  submission_id: string;
  session_id: string;
  /** The number of the event that queued it. Read its own events after this number. */
  position: number;
  /** What it requests: `message`, `retry`, `undo`, `interrupt`, … */
  kind: string;
  /** `control` overtakes the queue. */
  lane: "main" | "control";
  when_busy: "queue" | "steer" | "interrupt" | "reject";
  /** `claimed`: a worker processes it. `dead`: it was given up after too many attempts. */
  state: "queued" | "claimed" | "waiting" | "done" | "failed" | "dead";
  /** How many times a worker has started it. */
  attempts: number;
  /** Why it failed, or what it waits for. */
  reason: string | null;
  /** Its last run. */
  run_id: string | null;
  idempotency_key: string | null;
  created_at: string;
  /** When a worker started it. */
  started_at: string | null;
  /** When it was done or failed. */
  ended_at: string | null;
  /** The time before which it does not start. While its turn waits: when the turn continues without an answer. */
  deliver_at?: string | null;
  /** The order among the sessions of its owner. */
  priority?: "low" | "normal" | "high";
  /** The submitted content. Lists include it only with `payloads`. */
  payload?: unknown;
}

/** A message or command that was sent to a session, and its state. */
export interface SubmissionInfo {
  submission_id: string;
  session_id: string;
  /** The number of the event that queued it. Read its own events after this number. */
  position: number;
  /** What it requests: `message`, `retry`, `undo`, `interrupt`, … */
  kind: string;
  /** `control` overtakes the queue. */
  lane: "main" | "control";
  when_busy: "queue" | "steer" | "interrupt" | "reject";
  /** `claimed`: a worker processes it. `dead`: it was given up after too many attempts. */
  state: "queued" | "claimed" | "waiting" | "done" | "failed" | "dead";
  /** How many times a worker has started it. */
  attempts: number;
  /** Why it failed, or what it waits for. */
  reason: string | null;
  /** Its last run. */
  run_id: string | null;
  idempotency_key: string | null;
  created_at: string;
  /** When a worker started it. */
  started_at: string | null;
  /** When it was done or failed. */
  ended_at: string | null;
  /** The time before which it does not start. While its turn waits: when the turn continues without an answer. */
  deliver_at?: string | null;
  /** The order among the sessions of its owner. */
  priority?: "low" | "normal" | "high";
}

/** The changes to a subscription. Other fields stay as they are. */
export interface SubscriptionChange {
  /** The https URL of your webhook. */
  url?: string | null;
  /** The kinds of notices to send. `worker_lost` requires `everyone`. */
  kinds?: Array<"waiting" | "done" | "failed" | "given_up" | "budget_reached" | "retention_due" | "worker_lost"> | null;
  /** Only sessions of these agents; by default of all. */
  agents?: Array<string> | null;
  /** Only these sessions; by default all. */
  sessions?: Array<string> | null;
  /** Whether to include texts of the session: its title, questions, output and the reasons of failures. */
  content?: boolean | null;
  /** Whether the subscription is paused. Events during the pause are not announced. */
  paused?: boolean | null;
}

/** A subscription, without its secret. */
export interface SubscriptionInfo {
  id: string;
  owner: string;
  /** Whether it applies to the sessions of all owners. */
  everyone: boolean;
  url: string;
  kinds: Array<"waiting" | "done" | "failed" | "given_up" | "budget_reached" | "retention_due" | "worker_lost">;
  agents: Array<string>;
  sessions: Array<string>;
  content: boolean;
  paused: boolean;
  /** The reason why the last deliveries failed; null if the last ones arrived. */
  problem: string | null;
  created_at: string;
}

/** A subscription with its secret, which is shown only now. */
export interface SubscriptionSecret {
  id: string;
  owner: string;
  /** Whether it applies to the sessions of all owners. */
  everyone: boolean;
  url: string;
  kinds: Array<"waiting" | "done" | "failed" | "given_up" | "budget_reached" | "retention_due" | "worker_lost">;
  agents: Array<string>;
  sessions: Array<string>;
  content: boolean;
  paused: boolean;
  /** The reason why the last deliveries failed; null if the last ones arrived. */
  problem: string | null;
  created_at: string;
  /** The secret to verify deliveries with. */
  secret: string;
}

/** The result for one session that was due. */
export interface SweepOutcome {
  session_id: string;
  policy: string;
  action: "clean" | "archive" | "erase";
  outcome: "cleaned" | "erased" | "dry_run" | "refused" | "failed";
  guard: string | null;
  problem: string | null;
  deleted: Record<string, number>;
}

/** The options of a sweep. */
export interface SweepRequest {
  /** Only report what would be done. */
  dry_run?: boolean;
  /** The maximum number of sessions. */
  limit?: number;
}

/** The result of a sweep. */
export interface SweepResult {
  items: Array<SweepOutcome>;
  outcomes: Record<string, number>;
  submissions: number;
  shell_events: number;
  blobs: number;
  /** Deleted sums of usage. */
  usage: number;
  dry_run: boolean;
  /** Whether more sessions may be due, because the limit was reached or the sweep ended early. */
  more: boolean;
  /** The reason if the sweep ended early. */
  problem: string | null;
}

/** Text in Pydantic AI's format. */
export interface TextContentPart {
  kind: "text-content";
  content: string;
}

/** A message of text. */
export interface TextMessage {
  /** If a turn is running: queue the submission, add it to the turn at its next model request, interrupt the turn, or fail with 409. */
  when_busy?: "queue" | "steer" | "interrupt" | "reject";
  /** A second submission with the same key is not queued; the first one is returned. */
  idempotency_key?: string | null;
  /** The time from which a worker may start it, with a time zone; by default now. At most ten years ahead. */
  deliver_at?: string | null;
  /** The order among the sessions of an owner if they have to wait. A session has the highest priority of its pending submissions. */
  priority?: "low" | "normal" | "high";
  kind?: "message";
  /** The text of the message. */
  text: string;
}

/** Request body of AG-UI's `HttpAgent`. Only the last message, or `resume`, counts. */
export interface ThreadRequest {
  /** The id of the thread, which is the session. */
  threadId: string;
  /** The id of the run. The same id again returns the same response. */
  runId: string;
  /** The messages of the thread. */
  messages?: Array<Record<string, unknown>>;
  /** The answers to open interrupts. */
  resume?: Array<Record<string, unknown>> | null;
}

/** The result of a tool call that ran outside of the agent. */
export interface ToolResult {
  /** The tool call, from `approvals` of the session. */
  call_id: string;
  /** The digest of the call's arguments, from the same list. */
  digest: string;
  /** Any JSON value. The model receives it as the result of the call. */
  result?: unknown;
  /** Why the call failed, instead of a result. The model receives it. */
  error?: string | null;
  /** A second result with the same key is not delivered; the first one is returned. */
  idempotency_key?: string | null;
}

/** The turn whose effects are undone. */
export interface UndoTarget {
  /** The submission of a turn that has ended. */
  submission_id: string;
}

/** The ledger entry of a call or step whose outcome is unknown. */
export interface UnsettledCall {
  run_id: string;
  call_id: string;
}

/** What was used on one day, by one owner, agent or session, with one model, or a combination of these. Sums have no content. */
export interface UsageInfo {
  /** In UTC; null unless grouped by day. */
  day: string | null;
  /** Null unless grouped by owner. */
  owner: string | null;
  /** Null unless grouped by agent. */
  agent: string | null;
  /** The requested model; null unless grouped by model. Empty for the work of runs without a model. */
  model: string | null;
  /** Null unless grouped by session. */
  session_id: string | null;
  /** Completed model requests. */
  requests: number;
  /** How many of them have no known cost. */
  unpriced: number;
  /** Includes the tokens from and for the cache. */
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  /** The known cost in dollars. */
  cost_usd: number;
  /** Tool calls that the models requested. */
  tool_calls: number;
  /** How long runs worked. Runs at the same time add up. */
  seconds: number;
}

/** A worker or another holder of sessions. */
export interface WorkerInfo {
  id: string;
  name: string;
  sessions: number;
  deadline: string;
  /** The agents that the worker serves. */
  agents: Array<string>;
}

/** The codes of the errors. A newer server may have others. */
export type ErrorCode = "agent_exited" | "approval_needed" | "archive_failed" | "archive_too_new" | "bad_archive" | "bad_cursor" | "bad_id" | "bad_import" | "bad_input" | "bad_key" | "bad_settings" | "bad_text" | "bad_uri" | "bad_usage" | "bad_uuid" | "budget_reached" | "command_lost" | "conflict" | "credential_sealed" | "error" | "event_not_found" | "folder_not_found" | "forbidden" | "history_too_large" | "holder_lost" | "id_unavailable" | "key_reused" | "lease_lost" | "media_collected" | "media_damaged" | "media_denied" | "media_error" | "media_full" | "media_not_found" | "media_unavailable" | "missing_extra" | "not_cleaned" | "not_found" | "outcome_unknown" | "payload_too_large" | "queue_full" | "rate_limited" | "retention_refused" | "server_error" | "server_unavailable" | "session_busy" | "session_cleaned" | "session_erased" | "session_exists" | "session_moved" | "session_not_found" | "shell_closed" | "shell_unavailable" | "signal_timeout" | "step_failed" | "steps_differ" | "stopping" | "store_busy" | "store_closed" | "store_corrupt" | "store_error" | "store_forked" | "store_full" | "store_in_use" | "store_missing" | "store_read_only" | "store_replaced" | "store_too_new" | "store_too_old" | "store_unavailable" | "sweep_running" | "too_many_exports" | "too_many_sessions" | "too_much_stored" | "turn_failed" | "turn_in_progress" | "turn_not_retriable" | "unauthenticated" | "unknown_media" | "unknown_store" | "version_conflict";
