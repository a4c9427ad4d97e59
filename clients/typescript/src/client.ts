import { HoldfastError } from "./errors.js";
import type { Inbox, Me, NewSession, SessionInfo } from "./models.js";
import { SessionHandle } from "./session.js";
import { Transport } from "./transport.js";

export interface HoldfastOptions {
  /** The URL of the API server. Empty for the server of the current page. */
  url: string;
  /** The access token. Without it, a browser sends the cookie of the page. */
  token?: string;
  /** Use this function instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** A session to open, or to create if it has an agent and does not exist. */
export type NewSessionOptions = Partial<NewSession> & ({ agent: string } | { id: string });

export interface SessionFilter {
  status?: SessionInfo["status"];
  agent?: string;
  /** For administrators. */
  owner?: string;
  /** Matches part of the title. */
  search?: string;
}

/** The sessions of one API server. */
export class Holdfast {
  private readonly transport: Transport;

  constructor({ url, token, fetch }: HoldfastOptions) {
    this.transport = new Transport(url.replace(/\/+$/, ""), token, fetch ?? globalThis.fetch.bind(globalThis));
  }

  /**
   * Open a session. With an `agent`, create it if it does not exist. Without an `id`, a new one is generated.
   *
   * Throws the error `session_not_found`, or `conflict` if the session belongs to another agent.
   */
  async session(options: NewSessionOptions): Promise<SessionHandle> {
    const { agent, id } = options;
    if (agent !== undefined) {
      try {
        const created = await this.transport.call<SessionInfo>("POST", "/api/sessions", { json: options });
        return new SessionHandle(this.transport, created.id);
      } catch (error) {
        if (!(error instanceof HoldfastError) || error.code !== "session_exists" || id == null) throw error;
      }
    }
    const handle = new SessionHandle(this.transport, id!);
    const existing = (await handle.info()).agent;
    if (agent !== undefined && agent !== existing) {
      const problem = `session ${id} belongs to agent '${existing}', not '${agent}'`;
      throw new HoldfastError("conflict", `Conflict: ${problem}.`, { problem });
    }
    return handle;
  }

  /** Yield sessions, most recently active first. */
  sessions(filter: SessionFilter = {}): AsyncGenerator<SessionInfo, void, undefined> {
    return this.transport.items("/api/sessions", { ...filter });
  }

  /** Return the sessions that wait for a person, longest wait first, with their `approvals`. */
  inbox(): Promise<Inbox> {
    return this.transport.call("GET", "/api/inbox");
  }

  /** Return your owner name, your role and scopes, and the agents of the API server. */
  me(): Promise<Me> {
    return this.transport.call("GET", "/api/me");
  }

  /** Return the content with this SHA-256. A session that you can read must refer to it. */
  media(sha256: string): Promise<Uint8Array> {
    return this.transport.media(sha256);
  }
}
