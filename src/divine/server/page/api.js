/* The server's API as this page needs it: which model there is, and one chat completion as a stream of
 * chunks. Turns every way in which that can fail into a Failure with a sentence. Knows no elements. */

/** Why there is no answer, or no more of it. `kind`: "key", "busy", "refused", "server", "gone", "broken". */
export class Failure extends Error {
  constructor(kind, message, retryAfter = null) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter; // seconds
  }
}

const headers = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("gone", "The server cannot be reached. Is “divine serve” still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The Failure for an answer that is not 200. */
async function refusal(response) {
  let message = "";
  try {
    const body = await response.json();
    message = String(body.error?.message ?? body.detail ?? "");
  } catch {
    // no JSON, such as a proxy's own page: the number must do
  }
  if (response.status === 401) return new Failure("key", message || "The server asks for an API key.");
  if (response.status === 429 || response.status === 503) {
    const seconds = Number(response.headers.get("Retry-After") ?? "");
    return new Failure("busy", message || "The server is busy.", Number.isFinite(seconds) && seconds > 0 ? seconds : 2);
  }
  const kind = response.status >= 500 ? "server" : "refused";
  return new Failure(kind, message || `The server answered ${response.status} and said nothing more.`);
}

/** The name of the model that is served. */
export async function modelName(key) {
  const response = await request("v1/models", { headers: headers(key) });
  const body = await response.json();
  return String(body.data?.[0]?.id ?? "");
}

/** The chunks of one chat completion, parsed, as they come. Aborting `signal` ends it with AbortError. */
export async function* streamChat(body, key, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: toJson(body),
    signal,
  });
  let done = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      done = true;
      continue;
    }
    const chunk = parse(data);
    if (chunk.error) throw new Failure("server", String(chunk.error.message ?? chunk.error));
    yield chunk;
  }
  if (!done) throw new Failure("broken", "The connection broke before the answer was finished.");
}

// A seed has 64 bits, more than a number of this language holds: it is a BigInt here, a string when read.
function toJson({ seed, ...body }) {
  const text = JSON.stringify(body);
  return seed === undefined ? text : `${text.slice(0, -1)},"seed":${seed}}`;
}

function parse(data) {
  try {
    return JSON.parse(data.replace(/"seed":\s*(\d{16,})/, '"seed":"$1"'));
  } catch {
    throw new Failure("broken", "The server sent something that is not JSON.");
  }
}

/** The data of server-sent events in a stream of bytes, whatever way the bytes are cut. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const lines = buffer.split(/\r\n|\n|\r(?!$)/); // a CR at the end may be half of a CRLF
      buffer = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("broken", "The connection broke before the answer was finished.");
  } finally {
    reader.cancel().catch(() => {}); // the reader may have failed already
  }
}
