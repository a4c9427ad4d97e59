export { Holdfast, type HoldfastOptions, type NewSessionOptions, type SessionFilter } from "./client.js";
export { ApprovalNeeded, HoldfastError, ServerUnavailable, TurnFailed } from "./errors.js";
export type * from "./models.js";
export { SessionHandle, type Decision, type EventOptions, type SendOptions } from "./session.js";
export type { SessionEvent } from "./stream.js";
export { TurnHandle, type WaitOptions } from "./turn.js";
