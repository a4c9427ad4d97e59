import { HoldfastError, ServerUnavailable } from "./errors.js";
import { parseWithMedia } from "./media.js";

const TIMEOUT_MS = 30_000;
const PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 5_000;
/** How long a reader waits for a server that is restarting. */
const PATIENCE_MS = 300_000;
/** The statuses of a server that is stopping, and of a proxy whose server is away. */
const GATEWAY = new Set([502, 503, 504]);

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface RequestOptions {
  json?: unknown;
  query?: Query;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

/** Sends requests, and throws the errors of the server as `HoldfastError`. */
export class Transport {
  constructor(
    readonly url: string,
    private readonly token: string | undefined,
    private readonly fetch: typeof globalThis.fetch,
  ) {}

  /** Send a request and return the response if it is a success. Its body is not read yet. */
  async open(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
    const headers: Record<string, string> = { ...options.headers };
    if (this.token !== undefined) headers["authorization"] = `Bearer ${this.token}`;
    if (options.json !== undefined) headers["content-type"] = "application/json";
    const given = Object.entries(options.query ?? {}).filter(([, value]) => value !== undefined && value !== null);
    const query = new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)])).toString();
    const init: RequestInit = { method, headers };
    if (options.json !== undefined) init.body = JSON.stringify(options.json);
    if (options.signal !== undefined) init.signal = options.signal;
    const address = this.url + path + (query && `?${query}`);
    const response = await this.reached(() => this.fetch(address, init), options.signal);
    if (!response.ok) throw await this.reached(() => errorOf(response), options.signal);
    return response;
  }

  /** Send a request and return the body of the response. */
  async call<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const timeout = AbortSignal.timeout(TIMEOUT_MS);
    const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
    try {
      const response = await this.open(method, path, { ...options, signal });
      const text = await this.reached(() => response.text(), signal);
      return (await this.parse(text, response.status)) as T;
    } catch (error) {
      if (timeout.aborted && !options.signal?.aborted) throw new ServerUnavailable(this.url, "the request timed out");
      throw error;
    }
  }

  /** Return the content with this SHA-256. */
  async media(sha256: string): Promise<Uint8Array> {
    const response = await this.open("GET", `/api/media/${encodeURIComponent(sha256)}`);
    return new Uint8Array(await this.reached(() => response.arrayBuffer()));
  }

  /** Return JSON text as a value, with its media. */
  async parse(text: string, status?: number): Promise<unknown> {
    if (text === "") return undefined;
    try {
      return await parseWithMedia(text, (sha256) => this.media(sha256));
    } catch (error) {
      if (error instanceof HoldfastError) throw error;
      throw new HoldfastError("unknown", "The response of the server is not JSON.", {}, status);
    }
  }

  /** Repeat a read while the server is restarting. */
  async patiently<T>(path: string, signal?: AbortSignal): Promise<T> {
    const retry = new Backoff();
    for (;;) {
      try {
        return await this.call<T>("GET", path, { signal });
      } catch (error) {
        await retry.pause(error, signal);
      }
    }
  }

  /** Yield all items of a list, page by page. `after` names the parameter that takes the cursor. */
  async *items<T>(path: string, query: Query = {}, after = "cursor"): AsyncGenerator<T, void, undefined> {
    let cursor: string | null | undefined;
    do {
      const page: Page<T> = await this.call("GET", path, { query: cursor == null ? query : { ...query, [after]: cursor } });
      yield* page.items;
      cursor = page.next_cursor;
    } while (cursor != null);
  }

  /** Return the result of reading from the network. What the network throws becomes `ServerUnavailable`; an abort stays what it is. */
  async reached<T>(read: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    try {
      return await read();
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof HoldfastError) throw error;
      throw new ServerUnavailable(this.url, problemOf(error));
    }
  }
}

/** Pauses between attempts, longer each time. Gives up if an error will not pass, or if the server has been away for minutes. */
export class Backoff {
  private length = PAUSE_MS;
  private since: number | undefined;

  /** The server was reached. */
  reset(): void {
    this.length = PAUSE_MS;
    this.since = undefined;
  }

  /** Wait before the next attempt. Throws the error if there is no point in another one. */
  async pause(error?: unknown, signal?: AbortSignal): Promise<void> {
    if (error !== undefined) {
      this.since ??= Date.now();
      if (!mayPass(error) || Date.now() - this.since > PATIENCE_MS) throw error;
    }
    await sleep(this.length * (0.5 + Math.random() / 2), signal);
    this.length = Math.min(this.length * 2, LONGEST_PAUSE_MS);
  }
}

function mayPass(error: unknown): boolean {
  return error instanceof ServerUnavailable || (error instanceof HoldfastError && GATEWAY.has(error.status ?? 0));
}

function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const end = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", end, { once: true });
  });
}

function problemOf(error: unknown): string {
  const { message, cause } = error instanceof Error ? error : new Error(String(error));
  return cause instanceof Error && cause.message ? `${message}: ${cause.message}` : message;
}

async function errorOf(response: Response): Promise<HoldfastError> {
  const text = await response.text();
  try {
    const { code, message, facts } = JSON.parse(text).error;
    if (typeof code === "string" && typeof message === "string") {
      return new HoldfastError(code, message, facts ?? {}, response.status);
    }
  } catch {
    // It is not from Holdfast, but from a proxy.
  }
  return new HoldfastError("unknown", text.slice(0, 200).trim() || "no reason given", {}, response.status);
}
