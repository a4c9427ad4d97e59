const OPENING = '"media+sha256:';
const MARK = /(?<!\\)"media\+sha256:(?:(~)|\/\/([0-9a-f]{64})#([a-z0-9-]+)")/g;

/**
 * Return JSON text as a value, with the content that the server moved to its media store.
 *
 * Large strings are references there: `"media+sha256://<digest>#<form>"`. A user's own string that starts in this way has a `~`.
 */
export async function parseWithMedia(text: string, load: (sha256: string) => Promise<Uint8Array>): Promise<unknown> {
  if (!text.includes(OPENING)) return JSON.parse(text);
  const contents = new Map<string, Uint8Array>();
  for (const [, , digest] of text.matchAll(MARK)) {
    if (digest !== undefined && !contents.has(digest)) contents.set(digest, await load(digest));
  }
  const restore = (mark: string, own: string | undefined, digest: string, form: string) =>
    own ? OPENING : (written(contents.get(digest)!, form) ?? mark);
  return JSON.parse(text.replace(MARK, restore));
}

/** Return content as the JSON string that it was; undefined if its form is unknown. */
function written(data: Uint8Array, form: string): string | undefined {
  if (form === "text" || form === "ascii") return JSON.stringify(new TextDecoder().decode(data));
  if (form === "json") return `"${new TextDecoder().decode(data)}"`;
  if (!form.startsWith("base64")) return undefined;
  let text = "";
  for (let at = 0; at < data.length; at += 0x6000) text += btoa(String.fromCharCode(...data.subarray(at, at + 0x6000)));
  if (form.startsWith("base64url")) text = text.replaceAll("+", "-").replaceAll("/", "_");
  return JSON.stringify(form.endsWith("unpadded") ? text.replace(/=+$/, "") : text);
}
