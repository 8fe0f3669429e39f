// One answer, put together from the chunks of a stream. Pure: times come in as arguments.

// What a token belongs to, from the delta that brought it; `before` is what its predecessor did.
function partOf(delta, before) {
  if (delta.tool_calls?.length) return "tool calls";
  if (delta.content) return "answer";
  if (delta.reasoning_content || delta.reasoning) return "thinking";
  return before;
}

export class Answer {
  reasoning = "";
  content = "";
  toolCalls = [];  // {id, name, arguments}; arguments is JSON text, cut while it streams
  tokens = [];  // {part, token, logprob, bytes, top}; only if log-probabilities were asked for
  finishReason = null;
  usage = null;

  // In seconds, of any clock; null until it happened.
  startedAt = null;
  firstTokenAt = null;
  lastTokenAt = null;
  thoughtUntil = null;

  constructor(now) {
    this.startedAt = now;
  }

  add(chunk, now) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    this.reasoning += reasoning;
    this.content += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) this.addToCall(call);
    this.addTokens(choice.logprobs?.content ?? [], delta);
    if (choice.finish_reason) this.finishReason = choice.finish_reason;

    const saysSomething = delta.content || delta.tool_calls?.length;
    if (!reasoning && !saysSomething) return;
    this.firstTokenAt ??= now;
    this.lastTokenAt = now;
    if (this.reasoning && saysSomething) this.thoughtUntil ??= now;
  }

  addToCall(delta) {
    const call = this.toolCalls[delta.index] ??= { id: "", name: "", arguments: "" };
    if (delta.id) call.id = delta.id;
    if (delta.function?.name) call.name = delta.function.name;
    call.arguments += delta.function?.arguments ?? "";
  }

  addTokens(entries, delta) {
    for (const entry of entries) {
      const part = partOf(delta, this.tokens.at(-1)?.part ?? "answer");
      this.tokens.push({ part, token: entry.token, logprob: entry.logprob, bytes: entry.bytes,
                         top: entry.top_logprobs ?? [] });
    }
  }

  // Seconds until the first token, of thinking (null without) and of everything so far; output
  // tokens per second after the first token, null while unknown.
  timing(now) {
    const thinkingFrom = this.reasoning ? this.firstTokenAt : null;
    const written = this.usage && this.lastTokenAt > this.firstTokenAt
      ? (this.usage.completion_tokens - 1) / (this.lastTokenAt - this.firstTokenAt) : null;
    return {
      firstToken: this.firstTokenAt === null ? null : this.firstTokenAt - this.startedAt,
      thinking: thinkingFrom === null ? null : (this.thoughtUntil ?? now) - thinkingFrom,
      total: now - this.startedAt,
      tokensPerSecond: written > 0 ? written : null,
    };
  }
}

const kParts = [
  ["thinking", (answer) => answer.reasoning],
  ["answer", (answer) => answer.content],
  ["tool calls", (answer) => JSON.stringify(answer.toolCalls.map((c) => [c.name, c.arguments]))],
  ["finish reason", (answer) => answer.finishReason ?? ""],
  ["tokens and log-probabilities",
    (answer) => JSON.stringify(answer.tokens.map((t) => [t.token, t.bytes, t.logprob, t.top]))],
];

// Where two answers to the same request differ first: {part, at, expected, found}, the texts around
// the place; null if all that the server said is equal. Ids of calls are drawn and do not count.
export function firstDifference(expected, found) {
  for (const [part, text] of kParts) {
    const [a, b] = [text(expected), text(found)];
    if (a === b) continue;
    let at = 0;
    while (a[at] === b[at]) ++at;
    const around = (s) => s.slice(Math.max(0, at - 20), at + 20);
    return { part, at, expected: around(a), found: around(b) };
  }
  return null;
}
