// What the clients' tests share: where the servers are, and what an answer comes to, streamed and not.
//
// ../clients_test.py starts the servers and names them in the environment, as MILLRACE_NAME:
//   NANO                 the model models/nano
//   SCRIPTED             answers of script.mjs
//   KEYED                the same, for who has kKey or, for one request at a time, kLimitedKey
//   BUSY_503, BUSY_429   the same, one request at a time

import assert from "node:assert/strict";
import OpenAI from "openai";

export const kKey = "sk-the-right-key";
export const kLimitedKey = "sk-one-at-a-time";

export function urlOf(server) {
  const url = process.env[`MILLRACE_${server}`];
  assert.ok(url, `MILLRACE_${server} is not set: these tests are run by clients_test.py`);
  return url;
}

export function openai(server, options = {}) {
  return new OpenAI({ baseURL: `${urlOf(server)}/v1`, apiKey: "none", maxRetries: 0, timeout: 30000,
                      ...options });
}

// A chat that the script answers with the reply of that name.
export const ask = (name) => [{ role: "user", content: `[${name}]` }];

export const kTools = [
  ["get_weather", "Get the weather of a city.", { city: { type: "string" } }, ["city"]],
  ["get_time", "Get the time of a zone.", { zone: { type: "string" } }, ["zone"]],
  ["get_nothing", "Get nothing.", {}, []],
].map(([name, description, properties, required]) => (
  { type: "function",
    function: { name, description, parameters: { type: "object", properties, required } } }));

// What the chunks of a stream add up to, in the form of the choices of a whole answer. Holds every
// chunk to the rules that no client can see.
export async function addUp(stream) {
  const choices = [];
  let usage = null, head;
  for await (const chunk of stream) {
    const { id, object, created, model } = chunk;
    assert.equal(object, "chat.completion.chunk");
    assert.deepEqual({ id, created, model }, head ??= { id, created, model }, "the same in all chunks");
    assert.equal(usage, null, "nothing follows the usage");
    if (chunk.choices.length === 0) usage = chunk.usage;
    for (const { index, delta, logprobs, finish_reason, stop_reason } of chunk.choices) {
      const isFirst = choices[index] === undefined;
      const choice = choices[index] ??= (
        { index, content: "", reasoning: "", calls: [], tokens: [], finish_reason: null });
      assert.equal(choice.finish_reason, null, "nothing follows the finish reason");
      if (isFirst) assert.deepEqual(delta, { role: "assistant", content: "" });
      const kinds = ["content", "reasoning_content", "tool_calls"].filter((kind) => kind in delta);
      assert.ok(kinds.length <= 1, `one kind of text in a chunk: ${kinds}`);
      assert.ok(isFirst || kinds.length === 1 || finish_reason !== null, "no empty chunk");
      assert.equal(delta.reasoning, delta.reasoning_content, "reasoning under both names");
      if (!isFirst) assert.ok(delta.content !== "" && delta.reasoning !== "", "no empty text");
      choice.content += delta.content ?? "";
      choice.reasoning += delta.reasoning ?? "";
      for (const call of delta.tool_calls ?? []) {
        if (call.id !== undefined) {
          assert.equal(call.index, choice.calls.length);
          assert.match(call.id, /^call_\w{24,}$/);
          assert.equal(call.type, "function");
          choice.calls.push({ name: call.function.name, arguments: "" });
        }
        choice.calls[call.index].arguments += call.function.arguments;
      }
      choice.tokens.push(...logprobs?.content ?? []);
      choice.finish_reason = finish_reason;
      choice.stop_reason = stop_reason;
    }
  }
  return { choices, usage };
}

export function wholeOf(completion) {
  const choices = completion.choices.map(({ index, message, logprobs, finish_reason, stop_reason }) => {
    assert.equal(message.reasoning, message.reasoning_content);
    return { index, content: message.content ?? "", reasoning: message.reasoning ?? "",
             calls: message.tool_calls.map((call) => call.function),
             tokens: logprobs?.content ?? [], finish_reason, stop_reason };
  });
  return { choices, usage: completion.usage };
}

// The answer to a chat, which must be the same streamed and not.
export async function answer(client, params) {
  const completion = await client.chat.completions.create({ model: "scripted", ...params });
  const streamed = await addUp(await client.chat.completions.create(
    { model: "scripted", ...params, stream: true, stream_options: { include_usage: true } }));
  const whole = wholeOf(completion);
  assert.deepEqual(streamed, whole);
  return { ...whole, choice: whole.choices[0], completion };
}

export async function gauge(server, name) {
  const text = await (await fetch(`${urlOf(server)}/metrics`)).text();
  const line = text.split("\n").find((line) => line.startsWith(`vllm:${name}{`));
  return Number(line.split(" ").at(-1));
}

// The server has let go of a request whose client has gone.
export async function isIdleWithin(server, milliseconds = 1000) {
  const start = performance.now();
  for (;;) {
    const running = await gauge(server, "num_requests_running");
    const waiting = await gauge(server, "num_requests_waiting");
    if (running + waiting === 0) return;
    assert.ok(performance.now() - start < milliseconds, `${running} running, ${waiting} waiting`);
  }
}

// A fetch that notes what it answered.
export function countingFetch() {
  const statuses = [];
  const counting = async (...args) => {
    try {
      const response = await fetch(...args);
      statuses.push(response.status);
      return response;
    } catch (error) {
      statuses.push(error.name);
      throw error;
    }
  };
  return Object.assign(counting, { statuses });
}
