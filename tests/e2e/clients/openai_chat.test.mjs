// Chats through the `openai` package, against a script.

import assert from "node:assert/strict";
import { test } from "node:test";

import { addUp, answer, ask, gauge, isIdleWithin, kTools, openai, wholeOf } from "./harness.mjs";
import { kReplies, kUnicode } from "./script.mjs";

const client = openai("SCRIPTED");
const model = "scripted";
const chat = (params) => client.chat.completions.create({ model, ...params });
const argumentsOf = (reply) => reply.calls.map((call) => call.arguments);

test("openai: models are listed and retrieved", async () => {
  const models = await client.models.list();
  assert.deepEqual(models.data.map(({ id, object }) => [id, object]), [["scripted", "model"]]);
  assert.equal((await client.models.retrieve("scripted")).id, "scripted");
  await assert.rejects(client.models.retrieve("other"), { status: 404, code: "model_not_found" });
});

test("openai: an answer, with everything about it", async () => {
  const { choice, usage, completion } = await answer(client, { messages: ask("plain") });
  assert.equal(choice.content, kReplies.plain.content);
  assert.equal(choice.finish_reason, "stop");
  assert.equal(choice.stop_reason, null);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  assert.match(completion.id, /^chatcmpl-\w+$/);
  assert.equal(completion.object, "chat.completion");
  assert.equal(completion.model, "scripted");
  assert.ok(Math.abs(completion.created - Date.now() / 1000) < 60);
});

test("openai: no model named is the one that is served", async () => {
  const completion = await client.chat.completions.create({ messages: ask("plain") });
  assert.equal(completion.model, "scripted");
});

test("openai: reasoning comes under both names and is counted", async () => {
  const { choice, usage } = await answer(client, { messages: ask("thinks") });
  assert.equal(choice.reasoning, kReplies.thinks.reasoning);
  assert.equal(choice.content, kReplies.thinks.content);
  const { reasoning_tokens } = usage.completion_tokens_details;
  assert.ok(0 < reasoning_tokens && reasoning_tokens < usage.completion_tokens);
});

test("openai: every effort thinks, and no effort does not", async () => {
  for (const reasoning_effort of ["minimal", "low", "medium", "high", "xhigh", "max"]) {
    const { choice } = await answer(client, { messages: ask("thinks"), reasoning_effort });
    assert.equal(choice.reasoning, kReplies.thinks.reasoning);
  }
  const ways = [{ reasoning_effort: "none" }, { thinking: { type: "disabled" } },
                { chat_template_kwargs: { thinking: false } },
                { chat_template_kwargs: { enable_thinking: false } }];
  for (const way of ways) {
    const { choice, usage } = await answer(client, { messages: ask("at once"), ...way });
    assert.equal(choice.reasoning, "", JSON.stringify(way));
    assert.equal(choice.content, kReplies["at once"].content, JSON.stringify(way));
    assert.equal(usage.completion_tokens_details.reasoning_tokens, 0);
  }
  await assert.rejects(chat({ messages: ask("thinks"), reasoning_effort: "enormous" }),
                       { status: 400, param: "reasoning_effort" });
});

test("openai: reasoning that is not wanted is counted and not sent", async () => {
  const { choice, usage } = await answer(client, { messages: ask("thinks"), include_reasoning: false });
  assert.equal(choice.reasoning, "");
  assert.equal(choice.content, kReplies.thinks.content);
  assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
});

test("openai: the first chunk is the first token's, not earlier", async () => {
  const start = performance.now();
  const stream = await chat({ messages: ask("slowly"), stream: true });
  for await (const chunk of stream) {
    assert.deepEqual(chunk.choices[0].delta, { role: "assistant", content: "" });
    assert.ok(performance.now() - start > 1450);
    break;
  }
});

test("openai: usage comes once, last, and only if asked for", async () => {
  const chunksWith = async (stream_options) => {
    const chunks = [];
    for await (const chunk of await chat({ messages: ask("plain"), stream: true, stream_options })) {
      chunks.push(chunk);
    }
    return chunks;
  };
  for (const chunk of await chunksWith(undefined)) {
    assert.equal(chunk.choices.length, 1);
    assert.equal(chunk.usage ?? null, null);
  }
  const chunks = await chunksWith({ include_usage: true });
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.ok(last.usage.completion_tokens > 0);
  assert.ok(chunks.every((chunk) => chunk.choices.length === 1 && chunk.usage === null));
});

test("openai: running usage stands in every chunk and ends at the whole", async () => {
  const stream = await chat({ messages: ask("thinks"), stream: true,
                              stream_options: { include_usage: true, continuous_usage_stats: true } });
  let before = 0, usage;
  for await (const chunk of stream) {
    usage = chunk.usage;
    assert.ok(usage, JSON.stringify(chunk));
    assert.ok(usage.completion_tokens >= before);
    before = usage.completion_tokens;
  }
  const { usage: whole } = await chat({ messages: ask("thinks") });
  assert.deepEqual(usage, whole);
});

test("openai: the request's id travels in the header", async () => {
  const { data, response, request_id } = await client.chat.completions
    .create({ model, messages: ask("plain") }, { headers: { "X-Request-Id": "my-own-id" } })
    .withResponse();
  assert.equal(response.headers.get("x-request-id"), "my-own-id");
  assert.equal(request_id, "my-own-id");
  assert.equal(data._request_id, "my-own-id");
  assert.equal(data.id, "chatcmpl-my-own-id");
  const raw = await client.chat.completions.create({ model, messages: ask("plain") }).asResponse();
  assert.equal(`chatcmpl-${raw.headers.get("x-request-id")}`, (await raw.json()).id);
  const streamed = await client.chat.completions
    .create({ model, messages: ask("plain"), stream: true }).withResponse();
  assert.match(streamed.response.headers.get("content-type"), /^text\/event-stream/);
  for await (const chunk of streamed.data) {
    assert.equal(chunk.id, `chatcmpl-${streamed.request_id}`);
  }
});

test("openai: three choices are three answers, interleaved in a stream", async () => {
  const { choices } = await answer(client, { messages: ask("choices"), n: 3 });
  assert.deepEqual(choices.map(({ index, content, reasoning }) => ({ index, content, reasoning })),
                   kReplies.choices.map(({ choice, content, reasoning }) => (
                     { index: choice, content, reasoning })));
});

test("openai: log-probabilities name every token, and their bytes are the text", async () => {
  const { choice } = await answer(client, { messages: ask("unicode"), logprobs: true });
  const text = Buffer.from(choice.tokens.flatMap((token) => token.bytes)).toString();
  assert.equal(text, `${kReplies.unicode.reasoning}</think>${kReplies.unicode.content}` +
                     "<｜end▁of▁sentence｜>");
});

test("openai: as many alternatives as asked for, best first", async () => {
  const params = { messages: ask("likely"), logprobs: true, top_logprobs: 2 };
  const { choice } = await answer(client, params);
  const answered = choice.tokens.filter((token) => token.top_logprobs.length > 0);
  assert.ok(answered.length > 0);
  for (const token of answered) {
    assert.deepEqual(token.top_logprobs.map(({ token, logprob }) => [token, logprob]),
                     [[" the", -0.25], [" a", -1.5]]);
  }
  await assert.rejects(chat({ ...params, top_logprobs: 21 }), { status: 400, param: "top_logprobs" });
  await assert.rejects(chat({ ...params, logprobs: false }), { status: 400, param: "top_logprobs" });
});

test("openai: characters arrive whole, however the tokens cut them", async () => {
  const { choice } = await answer(client, { messages: ask("unicode") });
  assert.equal(choice.content, `Here: ${kUnicode}`);
  assert.equal(choice.reasoning, `Thinking of ${kUnicode}`);
});

test("openai: the limit in every place of cut characters cuts stream and answer alike", async () => {
  const { usage } = await chat({ messages: ask("unicode") });
  const text = `${kReplies.unicode.reasoning}${kReplies.unicode.content}`;
  for (let max_tokens = 1; max_tokens < usage.completion_tokens; ++max_tokens) {
    const { choice } = await answer(client, { messages: ask("unicode"), max_tokens, logprobs: true });
    assert.equal(choice.tokens.length, max_tokens);
    const said = choice.reasoning + choice.content;
    assert.ok(text.startsWith(said.replace(/\ufffd+$/, "")), said);
  }
});

test("openai: token ids, streamed and not", async () => {
  const wish = { model, messages: ask("thinks"), return_token_ids: true };
  const whole = await client.chat.completions.create(wish);
  const ids = [];
  let prompt;
  for await (const chunk of await client.chat.completions.create({ ...wish, stream: true })) {
    prompt ??= chunk.prompt_token_ids;
    ids.push(...chunk.choices[0].token_ids ?? []);
  }
  assert.deepEqual(ids, whole.choices[0].token_ids);
  assert.equal(ids.length, whole.usage.completion_tokens);
  assert.deepEqual(prompt, whole.prompt_token_ids);
  assert.equal(prompt.length, whole.usage.prompt_tokens);
});

test("openai: bytes that are no character become a replacement character", async () => {
  const { choice } = await answer(client, { messages: ask("broken") });
  assert.equal(choice.content, kReplies.broken.content);
});

test("openai: an answer of nothing is an empty text", async () => {
  const { choice, completion } = await answer(client, { messages: ask("silent") });
  assert.equal(choice.finish_reason, "stop");
  assert.equal(completion.choices[0].message.content, "");
  const helper = client.chat.completions.stream({ model, messages: ask("silent") });
  assert.equal((await helper.finalMessage()).content ?? "", "");  // it takes no text for null
});

test("openai: the stream helper adds up to the answer", async () => {
  const helper = client.chat.completions.stream(
    { model, messages: ask("thinks"), stream_options: { include_usage: true } });
  let text = "";
  helper.on("content", (delta, snapshot) => {
    text += delta;
    assert.equal(snapshot, text);
  });
  const final = await helper.finalChatCompletion();
  assert.equal(text, kReplies.thinks.content);
  assert.equal(final.choices[0].message.content, text);
  assert.equal(final.choices[0].finish_reason, "stop");
  const { usage } = await chat({ messages: ask("thinks") });
  assert.equal((await helper.totalUsage()).total_tokens, usage.total_tokens);
});

// --- Tools

test("openai: a call of a tool, with no text beside it", async () => {
  for (const tool_choice of [undefined, "auto"]) {
    const { choice, completion } = await answer(client, { messages: ask("weather"), tools: kTools,
                                                          tool_choice });
    assert.equal(choice.finish_reason, "tool_calls");
    assert.equal(completion.choices[0].message.content, null);
    assert.equal(choice.reasoning, kReplies.weather.reasoning);
    assert.equal(choice.calls[0].name, "get_weather");
    assert.deepEqual(JSON.parse(choice.calls[0].arguments), { city: "Paris" });
  }
});

test("openai: calls in parallel, with arguments of every type", async () => {
  const { choice, completion } = await answer(client, { messages: ask("several"), tools: kTools });
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.content.trimEnd(), kReplies.several.content);
  assert.deepEqual(choice.calls.map(({ name }) => name), ["get_weather", "get_time", "get_nothing"]);
  assert.deepEqual(choice.calls.map((call) => JSON.parse(call.arguments)), argumentsOf(kReplies.several));
  assert.equal(new Set(completion.choices[0].message.tool_calls.map(({ id }) => id)).size, 3);
});

test("openai: arguments stream as they come, and the helper joins them", async () => {
  const helper = client.chat.completions.stream({ model, messages: ask("several"), tools: kTools });
  const deltas = [];
  helper.on("tool_calls.function.arguments.delta", ({ index, arguments_delta }) => {
    (deltas[index] ??= []).push(arguments_delta);
  });
  const done = [];
  helper.on("tool_calls.function.arguments.done", ({ index, name, arguments: text }) => {
    done[index] = [name, JSON.parse(text)];
  });
  const { tool_calls } = await helper.finalMessage();
  assert.ok(deltas[0].length > 5, "in pieces");
  assert.deepEqual(deltas.map((pieces) => pieces.join("")),
                   tool_calls.map((call) => call.function.arguments));
  assert.deepEqual(done, kReplies.several.calls.map(({ name, arguments: object }) => [name, object]));
});

test("openai: a call that is cut off ends with length and keeps what there was", async () => {
  const { choice } = await answer(client, { messages: ask("cutcall"), tools: kTools });
  assert.equal(choice.finish_reason, "length");
  assert.deepEqual(choice.calls, [{ name: kReplies.cutcall.call.name,
                                    arguments: kReplies.cutcall.call.begin }]);
});

test("openai: markup that the model got wrong comes out the same, streamed and not", async () => {
  for (const [name, { said }] of Object.entries(kReplies).filter(([, reply]) => reply.said)) {
    const { choice } = await answer(client, { messages: ask(name), tools: kTools });
    const { reasoning, content, calls } = choice;
    assert.deepEqual({ reasoning, content, calls }, { reasoning: "", calls: [], ...said }, name);
    assert.equal(choice.finish_reason, calls.length > 0 ? "tool_calls" : "stop");
  }
});

test("openai: max_tokens in every place of a call cuts stream and answer alike", async () => {
  const { usage } = await chat({ messages: ask("several"), tools: kTools });
  for (let max_tokens = 1; max_tokens < usage.completion_tokens; max_tokens += 7) {
    const { choice, usage: cut } = await answer(client, { messages: ask("several"), tools: kTools,
                                                          max_tokens });
    assert.equal(choice.finish_reason === "length" || choice.calls.length > 0, true);
    assert.equal(cut.completion_tokens, max_tokens);
  }
});

test("openai: tool_choice none is an answer in words", async () => {
  const { choice } = await answer(client, { messages: ask("plain"), tools: kTools, tool_choice: "none" });
  assert.equal(choice.content, kReplies.plain.content);
  assert.equal(choice.finish_reason, "stop");
});

test("openai: what would need a grammar is refused by name", async () => {
  const schema = { type: "object", properties: { a: { type: "string" } } };
  const strict = [{ type: "function", function: { name: "f", parameters: schema, strict: true } }];
  const { OpenAI } = await import("openai");
  for (const [fields, param] of [
    [{ tools: kTools, tool_choice: "required" }, "tool_choice"],
    [{ tools: kTools, tool_choice: { type: "function", function: { name: "get_time" } } }, "tool_choice"],
    [{ tools: kTools, parallel_tool_calls: false }, "parallel_tool_calls"],
    [{ tools: strict }, "tools[0].function.strict"],
    [{ response_format: { type: "json_object" } }, "response_format"],
    [{ response_format: { type: "json_schema", json_schema: { name: "a", schema } } }, "response_format"],
    [{ structured_outputs: { json: schema } }, "structured_outputs"],
    [{ functions: [{ name: "f" }] }, "functions"],
  ]) {
    for (const stream of [false, true]) {
      await assert.rejects(chat({ messages: ask("plain"), stream, ...fields }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError, String(error));
        assert.equal(error.code, "unsupported_parameter");
        assert.equal(error.type, "invalid_request_error");
        assert.ok(error.param.startsWith(param), error.param);
        return true;
      });
    }
  }
});

test("openai: runTools calls, answers and goes on", async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const runner = client.chat.completions.runTools({
      model, messages: ask("weather"), stream,
      tools: [{ type: "function", function: {
        ...kTools[0].function, parse: JSON.parse,
        function: ({ city }) => {
          seen.push(city);
          return `[it is 18 degrees in ${city}]`;
        } } }],
    });
    assert.equal(await runner.finalContent(), "It is 18 degrees.");
    assert.deepEqual(seen, ["Paris"]);
    const roles = runner.messages.map(({ role }) => role);
    assert.deepEqual(roles, ["user", "assistant", "tool", "assistant"]);
  }
});

// --- Ends

test("openai: a stop string ends the answer wherever the pieces cut it, and never the reasoning", async () => {
  const { reasoning, content } = kReplies.stops;
  for (let from = 0; from < content.length; ++from) {
    const stop = content.slice(from, from + 4);
    const { choice } = await answer(client, { messages: ask("stops"), stop });
    assert.equal(choice.reasoning, reasoning);
    assert.equal(choice.content, content.slice(0, content.indexOf(stop)));
    assert.equal(choice.finish_reason, "stop");
    assert.equal(choice.stop_reason, stop);
  }
  const { choice } = await answer(client, { messages: ask("stops"), stop: ["never", "END"],
                                            include_stop_str_in_output: true });
  assert.equal(choice.content, "One, two, END");
  const { choice: whole } = await answer(client, { messages: ask("stops"), stop: "and more. But" });
  assert.equal(whole.content, content, "what only began like a stop string comes in the end");
  await assert.rejects(chat({ messages: ask("stops"), stop: "" }), { status: 400, param: "stop" });
});

test("openai: the limit of tokens is exact, and its reason is length", async () => {
  for (const limit of [{ max_completion_tokens: 5 }, { max_tokens: 5 },
                       { max_tokens: 50, max_completion_tokens: 5 }, { max_tokens: 1 }]) {
    const { choice, usage } = await answer(client, { messages: ask("thinks"), ...limit });
    assert.equal(usage.completion_tokens, limit.max_completion_tokens ?? limit.max_tokens);
    assert.equal(choice.finish_reason, "length");
    assert.ok(kReplies.thinks.reasoning.startsWith(choice.reasoning) && choice.content === "");
  }
});

test("openai: ignore_eos gives exactly as many tokens as asked for, min_tokens no fewer", async () => {
  const { usage } = await answer(client, { messages: ask("plain"), ignore_eos: true, max_tokens: 100 });
  assert.equal(usage.completion_tokens, 100);
  const least = await answer(client, { messages: ask("plain"), min_tokens: 40, max_tokens: 200 });
  assert.ok(least.usage.completion_tokens >= 40);
  await assert.rejects(chat({ messages: ask("plain"), min_tokens: 9, max_tokens: 8 }),
                       { status: 400, param: "min_tokens" });
});

test("openai: a client that aborts in mid stream frees its place within a second", async () => {
  const own = openai("SCRIPTED");
  const stream = await own.chat.completions.create({ model, messages: ask("endless"), stream: true });
  let chunks = 0;
  for await (const chunk of stream) {
    assert.equal(chunk.choices.length, 1);
    if (++chunks === 20) {
      assert.ok(await gauge("SCRIPTED", "num_requests_running") >= 1);
      stream.controller.abort();
    }
  }
  assert.ok(chunks >= 20);
  await isIdleWithin("SCRIPTED");
});

test("openai: a client that leaves before the first token frees its place, streamed or not", async () => {
  for (const stream of [false, true]) {
    const abort = new AbortController();
    const pending = client.chat.completions.create({ model, messages: ask("slowly"), stream },
                                                   { signal: abort.signal });
    while (await gauge("SCRIPTED", "num_requests_running") === 0);
    abort.abort();
    await assert.rejects(pending, { name: "Error", message: /abort/i });
    await isIdleWithin("SCRIPTED");
  }
});

// --- Requests

test("openai: nulls are fields that are not there", async () => {
  const fields = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed",
                  "stop", "stop_token_ids", "logprobs", "top_logprobs", "logit_bias", "tools", "tool_choice",
                  "response_format", "reasoning_effort", "thinking", "chat_template_kwargs", "user",
                  "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "min_tokens",
                  "parallel_tool_calls", "include_reasoning", "structured_outputs", "kv_transfer_params"];
  const nulls = Object.fromEntries(fields.map((field) => [field, null]));
  const { choice } = await answer(client, { messages: ask("thinks"), ...nulls });
  assert.equal(choice.content, kReplies.thinks.content);
  assert.equal(choice.reasoning, kReplies.thinks.reasoning);
});

test("openai: what only the hosted service knows changes nothing", async () => {
  const { choice } = await answer(client, {
    messages: ask("plain"), user: "u", metadata: { a: "b" }, store: true, service_tier: "auto",
    safety_identifier: "s", prompt_cache_key: "k", verbosity: "low", modalities: ["text"],
    prediction: { type: "content", content: "x" }, no_such_field: { a: [1] } });
  assert.equal(choice.content, kReplies.plain.content);
});

test("openai: contents may be lists of texts; images are refused", async () => {
  const content = [{ type: "text", text: "Say:" }, { type: "text", text: "[plain]" }];
  const { choice } = await answer(client, { messages: [{ role: "user", content }] });
  assert.equal(choice.content, kReplies.plain.content);
  const image = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
  await assert.rejects(chat({ messages: [{ role: "user", content: [...content, image] }] }),
                       { status: 400, code: "unsupported_parameter" });
});

// --- Histories

test("openai: a history of 200 turns is read to its end", async () => {
  const messages = [{ role: "system", content: "You are patient." }];
  for (let turn = 0; turn < 200; ++turn) {
    messages.push({ role: "user", content: `Question ${turn}?` });
    messages.push({ role: "assistant", content: `Answer ${turn}.`, reasoning_content: "Hm." });
  }
  const short = await answer(client, { messages: ask("plain") });
  const long = await answer(client, { messages: [...messages, ...ask("plain")] });
  assert.equal(long.choice.content, kReplies.plain.content);
  assert.ok(long.usage.prompt_tokens > short.usage.prompt_tokens + 200 * 10);
});

test("openai: a list of a thousand tools", async () => {
  const tools = Array.from({ length: 1000 }, (_, i) => ({ type: "function", function: {
    name: `tool_${i}`, description: `Number ${i}.`,
    parameters: { type: "object", properties: { x: { type: "number" } } } } }));
  const { choice, usage } = await answer(client, { messages: ask("weather"), tools });
  assert.equal(choice.calls.length, 1);
  assert.ok(usage.prompt_tokens > 20000);
});

test("openai: a beginning of the answer is continued", async () => {
  const begun = [{ role: "user", content: "Who?" }, { role: "assistant", content: "I say [at once]: " }];
  const beta = openai("SCRIPTED");
  beta.baseURL = beta.baseURL.replace("/v1", "/beta");
  for (const [own, messages, fields] of [
    [client, begun, { continue_final_message: true, add_generation_prompt: false }],
    [client, begun, { continue_final_message: true }],
    [beta, [begun[0], { ...begun[1], prefix: true }], {}],
  ]) {
    const { choice } = await answer(own, { messages, ...fields });
    assert.equal(choice.content, kReplies["at once"].content);
    assert.equal(choice.reasoning, "");
  }
  await assert.rejects(chat({ messages: begun, continue_final_message: true, add_generation_prompt: true }),
                       { status: 400 });
});

test("openai: empty contents, results without a call, calls without content", async () => {
  const call = { id: "call_1", type: "function", function: { name: "get_time", arguments: "{}" } };
  for (const history of [
    [{ role: "user", content: "" }],
    [{ role: "user", content: [] }],
    [{ role: "user", content: "a" }, { role: "assistant", content: "" }],
    [{ role: "user", content: "a" }, { role: "assistant", content: null, tool_calls: [call] },
     { role: "tool", tool_call_id: "call_1", content: "" }],
    [{ role: "tool", tool_call_id: "call_9", content: "18 degrees" }],
    [{ role: "developer", content: [{ type: "text", text: "Be brief." }] }],
  ]) {
    const { choice } = await answer(client, { messages: [...history, ...ask("plain")] });
    assert.equal(choice.content, kReplies.plain.content);
  }
});

test("openai: two clients at once each get their own answers", async () => {
  const keys = ["plain", "thinks", "unicode", "stops", "several"];
  const asked = [];
  for (const own of [openai("SCRIPTED"), openai("SCRIPTED")]) {
    for (let i = 0; i < 20; ++i) {
      const key = keys[i % keys.length];
      const params = { model, messages: ask(key), tools: kTools };
      asked.push(own.chat.completions.create({ ...params, stream: true }).then(addUp).then((streamed) => (
        { key, choice: streamed.choices[0] })));
      asked.push(own.chat.completions.create(params).then((completion) => (
        { key, choice: wholeOf(completion).choices[0] })));
    }
  }
  for (const { key, choice } of await Promise.all(asked)) {
    assert.equal(choice.content.trimEnd(), kReplies[key].content, key);
    assert.equal(choice.reasoning, kReplies[key].reasoning ?? "", key);
    assert.equal(choice.calls.length, kReplies[key].calls?.length ?? 0, key);
  }
});
