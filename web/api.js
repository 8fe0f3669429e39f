// The server's public API, and nothing else: all that leaves this page goes through here. URLs are
// relative to the page, so that a path prefix of a proxy works.

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;  // 0: the server did not answer, or not to the end
  }
  get isAway() { return this.status === 0; }
  get needsKey() { return this.status === 401; }
}

// The data of each event of a stream of server-sent events, cut anywhere.
export async function* eventData(chunks) {
  const decoder = new TextDecoder();
  let pending = "";
  for await (const chunk of chunks) {
    pending += decoder.decode(chunk, { stream: true });
    const lines = pending.split("\n");
    pending = lines.pop();
    for (const line of lines) {
      // Comments keep connections alive; our streams have one line of data per event.
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}

async function* bytesOf(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});  // it may have failed already
  }
}

function lost(error, message) {
  if (error instanceof ApiError || error.name === "AbortError") return error;
  return new ApiError(message);
}

async function errorOf(response) {
  let message = `The server answered ${response.status} ${response.statusText}`.trim();
  try {
    const body = await response.json();
    if (typeof body.error?.message === "string") message = body.error.message;
  } catch {
    // An answer of something in between; its status is all there is.
  }
  return new ApiError(message, response.status);
}

export class Api {
  // apiKey() returns the key of the moment, or "".
  constructor(apiKey) {
    this.apiKey = apiKey;
  }

  async models() {
    return (await this.getJson("v1/models")).data;
  }

  async stats() {
    return this.getJson("v1/millrace/stats");
  }

  // The chunks of one chat completion, until [DONE]. Throws ApiError for what the server refuses,
  // for an error inside the stream and for a stream that ends early.
  async* chat(body, signal) {
    const response = await this.request("v1/chat/completions", {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    try {
      for await (const data of eventData(bytesOf(response.body))) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.message ?? "The answer failed.", 500);
        yield chunk;
      }
    } catch (error) {
      throw lost(error, "The connection broke before the answer was complete.");
    }
    throw new ApiError("The stream ended before the answer was complete.");
  }

  async getJson(path) {
    const response = await this.request(path, {});
    try {
      return await response.json();
    } catch (error) {
      throw lost(error, "The server's answer is not JSON.");
    }
  }

  async request(path, { headers = {}, ...options }) {
    const key = this.apiKey();
    if (key) headers = { ...headers, Authorization: `Bearer ${key}` };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      throw lost(error, "The server does not answer.");
    }
    if (!response.ok) throw await errorOf(response);
    return response;
  }
}
