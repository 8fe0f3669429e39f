// The `ai` package with `@ai-sdk/openai-compatible`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

import { ask, countingFetch, gauge, isIdleWithin, kTools, openai, urlOf } from "./harness.mjs";
import { kFault, kReplies, kUnicode } from "./script.mjs";

const provider = createOpenAICompatible(
  { name: "millrace", baseURL: `${urlOf("SCRIPTED")}/v1`, includeUsage: true });
const model = provider("scripted");
const base = { model, maxRetries: 0 };

function tools(seen = []) {
  const results = { get_weather: ({ city }) => `[it is 18 degrees in ${city}]` };
  return Object.fromEntries(kTools.map(({ function: { name, description, parameters } }) => [name, tool({
    description, inputSchema: jsonSchema(parameters),
    execute: async (input) => {
      seen.push([name, input]);
      return results[name]?.(input) ?? "nothing";
    },
  })]));
}

// The parts of a stream, each kind of text added up.
async function addUp(stream) {
  const sum = { text: "", reasoning: "", calls: [], inputs: {}, kinds: [], errors: [], finish: null };
  for await (const part of stream) {
    if (sum.kinds.at(-1) !== part.type) sum.kinds.push(part.type);
    switch (part.type) {
      case "text-delta": sum.text += part.text; break;
      case "reasoning-delta": sum.reasoning += part.text; break;
      case "tool-input-start": sum.inputs[part.id] = ""; break;
      case "tool-input-delta": sum.inputs[part.id] += part.delta; break;
      case "tool-call": sum.calls.push(part); break;
      case "error": sum.errors.push(part.error); break;
      case "finish": sum.finish = part; break;
    }
  }
  return sum;
}

test("ai: generateText and streamText give the same text, reasoning and usage", async () => {
  for (const name of ["plain", "thinks", "unicode", "silent", "stops"]) {
    const whole = await generateText({ ...base, messages: ask(name) });
    assert.equal(whole.text, kReplies[name].content);
    assert.equal(whole.reasoningText ?? "", kReplies[name].reasoning ?? "");
    assert.equal(whole.finishReason, "stop");
    const streamed = await addUp(streamText({ ...base, messages: ask(name) }).fullStream);
    assert.equal(streamed.text, whole.text);
    assert.equal(streamed.reasoning, whole.reasoningText ?? "");
    assert.equal(streamed.finish.finishReason, "stop");
    assert.deepEqual(streamed.finish.totalUsage, whole.usage);
    assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
  }
});

test("ai: reasoning is a part of its own, before the text", async () => {
  const { kinds } = await addUp(streamText({ ...base, messages: ask("thinks") }).fullStream);
  const shown = kinds.filter((kind) => kind.endsWith("-delta") || kind.endsWith("-start"));
  assert.deepEqual(shown, ["reasoning-start", "reasoning-delta", "text-start", "text-delta"]);
  const whole = await generateText({ ...base, messages: ask("thinks") });
  assert.ok(whole.usage.reasoningTokens > 0);
});

test("ai: textStream brings whole characters", async () => {
  let text = "";
  for await (const piece of streamText({ ...base, messages: ask("unicode") }).textStream) {
    assert.ok(!piece.includes("\ufffd"));
    text += piece;
  }
  assert.equal(text, `Here: ${kUnicode}`);
});

test("ai: stop sequences and limits", async () => {
  const stopped = await generateText({ ...base, messages: ask("stops"), stopSequences: ["END"] });
  assert.equal(stopped.text, "One, two, ");
  const short = await generateText({ ...base, messages: ask("plain"), maxOutputTokens: 3 });
  assert.equal(short.finishReason, "length");
  assert.equal(short.usage.outputTokens, 3);
});

test("ai: calls in parallel, the same streamed and not", async () => {
  const expected = kReplies.several.calls.map(({ name, arguments: input }) => [name, input]);
  const seen = [];
  const whole = await generateText({ ...base, messages: ask("several"), tools: tools(seen) });
  assert.equal(whole.finishReason, "tool-calls");
  assert.deepEqual(whole.toolCalls.map(({ toolName, input }) => [toolName, input]), expected);
  assert.deepEqual(seen, expected);
  const streamed = await addUp(streamText({ ...base, messages: ask("several"), tools: tools() }).fullStream);
  assert.deepEqual(streamed.calls.map(({ toolName, input }) => [toolName, input]), expected);
  assert.deepEqual(Object.values(streamed.inputs).map((text) => JSON.parse(text)),
                   expected.map(([, input]) => input));
  assert.equal(streamed.text, whole.text);
});

test("ai: a tool is run and its result answered, streamed and not", async () => {
  const wish = () => ({ ...base, messages: ask("weather"), tools: tools(), stopWhen: stepCountIs(3) });
  const whole = await generateText(wish());
  assert.equal(whole.text, "It is 18 degrees.");
  assert.equal(whole.steps.length, 2);
  assert.equal(whole.steps[0].toolResults[0].output, "[it is 18 degrees in Paris]");
  const streamed = streamText(wish());
  assert.equal(await streamed.text, whole.text);
  assert.equal((await streamed.steps).length, 2);
});

test("ai: abortSignal ends the stream and frees its place", async () => {
  const abort = new AbortController();
  const { fullStream } = streamText({ ...base, messages: ask("endless"), abortSignal: abort.signal });
  let pieces = 0, aborted = false;
  for await (const part of fullStream) {
    aborted ||= part.type === "abort";
    if ((part.type === "text-delta" || part.type === "reasoning-delta") && ++pieces === 10) {
      assert.ok(await gauge("SCRIPTED", "num_requests_running") >= 1);
      abort.abort();
    }
  }
  assert.ok(aborted);
  await isIdleWithin("SCRIPTED");
});

test("ai: a fault in mid stream is an error part behind what there was", async () => {
  const { content } = kReplies.breaks;
  const streamed = await addUp(streamText({ ...base, messages: ask("breaks"), onError: () => {} }).fullStream);
  assert.equal(streamed.errors.length, 1);
  assert.ok(JSON.stringify(streamed.errors[0].message ?? streamed.errors[0]).includes(kFault));
  assert.ok(streamed.text !== "" && content.startsWith(streamed.text));
  assert.equal(streamed.finish.finishReason, "error");
  await assert.rejects(generateText({ ...base, messages: ask("breaks") }),
                       (error) => APICallError.isInstance(error) && error.statusCode === 500);
});

test("ai: objects are refused with the reason, since nothing makes the model keep to a schema", async () => {
  const schema = jsonSchema({ type: "object", properties: { a: { type: "string" } } });
  const structured = createOpenAICompatible({ name: "millrace", baseURL: `${urlOf("SCRIPTED")}/v1`,
                                              supportsStructuredOutputs: true })("scripted");
  for (const own of [model, structured]) {
    await assert.rejects(generateObject({ ...base, model: own, messages: ask("plain"), schema }), (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /response_format/);
      assert.equal(JSON.parse(error.responseBody).error.code, "unsupported_parameter");
      return true;
    });
  }
  await assert.rejects(generateText({ ...base, messages: ask("plain"), tools: tools(),
                                      toolChoice: "required" }), /tool_choice/);
});

test("ai: a busy server is asked again when it said", async () => {
  const busy = await openai("BUSY_503").chat.completions.create(
    { model: "scripted", messages: ask("endless"), stream: true });
  const fetch = countingFetch();
  const own = createOpenAICompatible({ name: "millrace", baseURL: `${urlOf("BUSY_503")}/v1`, fetch });
  const patient = generateText({ model: own("scripted"), messages: ask("plain") });
  while (fetch.statuses.length === 0) await new Promise(setImmediate);
  busy.controller.abort();
  assert.equal((await patient).text, kReplies.plain.content);
  assert.deepEqual(fetch.statuses, [503, 200]);
});

test("ai: completions", async () => {
  const { text } = await generateText({ maxRetries: 0, model: provider.completionModel("scripted"),
                                        prompt: "[at once]" });
  assert.equal(text, kReplies["at once"].content);
});
