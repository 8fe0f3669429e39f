// The `langchain` and `@langchain/openai` packages.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, HumanMessage, tool } from "langchain";

import { ask, isIdleWithin, kTools, urlOf } from "./harness.mjs";
import { kFault, kReplies } from "./script.mjs";

const chat = (server = "SCRIPTED", fields = {}) => new ChatOpenAI(
  { model: server.toLowerCase(), apiKey: "none", maxRetries: 0, timeout: 30000,
    configuration: { baseURL: `${urlOf(server)}/v1` }, ...fields });
const scripted = chat();

async function addUp(stream) {
  let sum;
  for await (const chunk of stream) sum = sum === undefined ? chunk : sum.concat(chunk);
  return sum;
}

const getWeather = (seen = []) => tool(
  ({ city }) => {
    seen.push(city);
    return `[it is 18 degrees in ${city}]`;
  },
  { name: "get_weather", description: "Get the weather of a city.", schema: kTools[0].function.parameters });

test("langchain: invoke and stream give the same message and usage", async () => {
  for (const name of ["plain", "thinks", "unicode", "silent", "stops"]) {
    const whole = await scripted.invoke(ask(name));
    assert.equal(whole.content, kReplies[name].content);
    assert.equal(whole.additional_kwargs.reasoning_content ?? "", kReplies[name].reasoning ?? "");
    assert.equal(whole.response_metadata.finish_reason, "stop");
    const streamed = await addUp(await scripted.stream(ask(name)));
    assert.equal(streamed.content, whole.content);
    assert.equal(streamed.additional_kwargs.reasoning_content ?? "", kReplies[name].reasoning ?? "");
    const figures = (metadata) => JSON.parse(JSON.stringify(metadata));  // without undefined ones
    assert.deepEqual(figures(streamed.usage_metadata), figures(whole.usage_metadata));
    assert.ok(whole.usage_metadata.output_tokens > 0);
  }
});

test("langchain: batch answers every prompt with its own answer", async () => {
  const names = ["plain", "thinks", "unicode", "plain"];
  const replies = await scripted.batch(names.map((name) => ask(name)));
  assert.deepEqual(replies.map(({ content }) => content), names.map((name) => kReplies[name].content));
});

test("langchain: stop and limits", async () => {
  assert.equal((await scripted.invoke(ask("stops"), { stop: ["END"] })).content, "One, two, ");
  const short = await chat("SCRIPTED", { maxTokens: 3 }).invoke(ask("plain"));
  assert.equal(short.response_metadata.finish_reason, "length");
  assert.equal(short.usage_metadata.output_tokens, 3);
});

test("langchain: bound tools are called, the same streamed and not", async () => {
  const bound = scripted.bindTools(kTools);
  const expected = kReplies.several.calls.map(({ name, arguments: args }) => [name, args]);
  const callsOf = ({ tool_calls }) => tool_calls.map(({ name, args }) => [name, args]);
  const whole = await bound.invoke(ask("several"));
  assert.deepEqual(callsOf(whole), expected);
  assert.equal(whole.response_metadata.finish_reason, "tool_calls");
  const streamed = await addUp(await bound.stream(ask("several")));
  assert.deepEqual(callsOf(streamed), expected);
  assert.equal(streamed.content, whole.content);
  for (const [i, chunk] of streamed.tool_call_chunks.entries()) {
    assert.deepEqual(JSON.parse(chunk.args), expected[i][1]);
  }
});

test("langchain: an agent calls its tool and answers", async () => {
  const seen = [];
  const agent = createAgent({ model: scripted, tools: [getWeather(seen)] });
  const { messages } = await agent.invoke({ messages: [new HumanMessage("[weather]")] });
  assert.deepEqual(seen, ["Paris"]);
  assert.equal(messages.at(-1).content, "It is 18 degrees.");
  assert.deepEqual(messages.map((message) => message.type), ["human", "ai", "tool", "ai"]);
});

test("langchain: an agent streams its steps and their tokens", async () => {
  const agent = createAgent({ model: scripted, tools: [getWeather()] });
  const steps = [];
  let text = "";
  const stream = await agent.stream({ messages: [new HumanMessage("[weather]")] },
                                    { streamMode: ["updates", "messages"] });
  for await (const [mode, part] of stream) {
    if (mode === "updates") steps.push(...Object.keys(part));
    if (mode === "messages" && part[0].type === "ai") text += part[0].content;
  }
  assert.deepEqual(steps, ["model_request", "tools", "model_request"]);
  assert.equal(text, "It is 18 degrees.");
});

test("langchain: a fault in mid stream is an exception behind what there was", async () => {
  const { content } = kReplies.breaks;
  let text = "";
  await assert.rejects(async () => {
    for await (const chunk of await scripted.stream(ask("breaks"))) text += chunk.content;
  }, (error) => error.message.includes(kFault));
  assert.ok(text !== "" && content.startsWith(text));
  await assert.rejects(scripted.invoke(ask("breaks")), { status: 500 });
});

test("langchain: an aborted stream frees its place", async () => {
  const abort = new AbortController();
  let pieces = 0;
  await assert.rejects(async () => {
    for await (const chunk of await scripted.stream(ask("endless"), { signal: abort.signal })) {
      assert.ok(chunk);
      if (++pieces === 10) abort.abort();
    }
  }, /abort/i);
  assert.ok(pieces >= 10);
  await isIdleWithin("SCRIPTED");
});

test("langchain: structured output and forced tools are refused with the reason", async () => {
  const schema = { title: "a", type: "object", properties: { a: { type: "string" } } };
  for (const method of ["jsonSchema", "jsonMode", "functionCalling"]) {
    const structured = scripted.withStructuredOutput(schema, { method, name: "a" });
    await assert.rejects(structured.invoke(ask("plain")), (error) => (
      error.status === 400 && error.code === "unsupported_parameter" &&
      /response_format|tool_choice|strict/.test(error.message)));
  }
  await assert.rejects(scripted.bindTools(kTools, { tool_choice: "required" }).invoke(ask("plain")),
                       { status: 400, param: "tool_choice" });
});

test("langchain: a prompt that is too long is told as one", async () => {
  await assert.rejects(scripted.invoke([new HumanMessage("word ".repeat(300000))]),
                       { name: "ContextOverflowError", message: /maximum context length/ });
});
