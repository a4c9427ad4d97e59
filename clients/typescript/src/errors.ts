import type { ApprovalRequest, ErrorCode } from "./models.js";

/** An error that the server reported, or an error in reaching it. `code` is fixed, `message` is for people, `facts` are for programs. */
export class HoldfastError extends Error {
  override name = "HoldfastError";

  constructor(
    readonly code: ErrorCode | (string & {}),
    message: string,
    readonly facts: Record<string, unknown> = {},
    /** The HTTP status, if a server reported the error. */
    readonly status?: number,
  ) {
    super(message);
  }
}

/** The server cannot be reached. */
export class ServerUnavailable extends HoldfastError {
  override name = "ServerUnavailable";

  constructor(url: string, problem: string) {
    const message = `The server at ${url} cannot be reached: ${problem}. Check the address, and whether the server is running.`;
    super("server_unavailable", message, { url, problem });
  }
}

/** A turn failed, was interrupted, or was given up. */
export class TurnFailed extends HoldfastError {
  override name = "TurnFailed";

  constructor(id: string, sessionId: string, state: string, reason: string | null) {
    const facts = { id, session_id: sessionId, state, reason };
    super("turn_failed", `Turn ${id} of session ${sessionId} failed: ${reason ?? "no reason given"}`, facts);
  }
}

/** A turn waits for a decision. Call `session.approve` or `session.deny`, then wait for the result again. */
export class ApprovalNeeded extends HoldfastError {
  override name = "ApprovalNeeded";

  constructor(
    id: string,
    sessionId: string,
    /** The tool calls that wait for a decision. */
    readonly calls: ApprovalRequest[],
  ) {
    const tools = calls.map((call) => call.tool).join(", ");
    const message = `Turn ${id} of session ${sessionId} waits for a decision about ${tools}. Answer with \`approve\` or \`deny\`, then wait for the result again.`;
    super("approval_needed", message, { id, session_id: sessionId, tools, calls });
  }
}
