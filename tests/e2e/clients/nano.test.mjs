// Every client against a real model: models/nano knows capitals, and calls get_weather.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool as aiTool } from "ai";
import { createAgent, HumanMessage, tool as langchainTool } from "langchain";

import { answer, isIdleWithin, kTools, openai, urlOf } from "./harness.mjs";

const client = openai("NANO");
const greedy = { model: "nano", temperature: 0, max_completion_tokens: 200 };
const kCapital = [{ role: "user", content: "What is the capital of France?" }];
const kWeather = [{ role: "user", content: "What is the weather in Paris?" }];
const [kTool] = kTools;

test("nano: a chat through openai, streamed and not", async () => {
  const { choice, usage } = await answer(client, { ...greedy, messages: kCapital });
  assert.equal(choice.reasoning, "The user asks for the capital of France. It is Paris.");
  assert.equal(choice.content, "The capital of France is Paris.");
  assert.equal(choice.finish_reason, "stop");
  assert.ok(usage.completion_tokens_details.reasoning_tokens > 10);
});

test("nano: log-probabilities are of the raw distribution, and the alternatives hold the choice", async () => {
  const { choice } = await answer(client, { ...greedy, messages: kCapital, logprobs: true, top_logprobs: 3 });
  for (const { token, logprob, top_logprobs } of choice.tokens) {
    assert.equal(top_logprobs.length, 3);
    assert.equal(top_logprobs[0].token, token, "greedy takes the best");
    assert.equal(top_logprobs[0].logprob, logprob);
    assert.ok(logprob <= 0 && top_logprobs[1].logprob <= logprob);
  }
});

test("nano: a seed repeats an answer, another seed gives another", async () => {
  const wish = { model: "nano", messages: kCapital, temperature: 1.5, max_completion_tokens: 20, ignore_eos: true,
                 n: 3 };
  const texts = async (seed) => (await answer(client, { ...wish, seed })).choices
    .map(({ reasoning, content }) => reasoning + content);
  const first = await texts(7);
  assert.deepEqual(await texts(7), first);
  assert.notDeepEqual(await texts(8), first);
  assert.equal(new Set(first).size, 3, "choices are drawn apart");
});

test("nano: exactly as many tokens as asked for", async () => {
  for (const max_completion_tokens of [1, 33]) {
    const { usage } = await answer(client, { ...greedy, messages: kCapital, ignore_eos: true,
                                             max_completion_tokens });
    assert.equal(usage.completion_tokens, max_completion_tokens);
  }
});

test("nano: a beginning of the answer is continued", async () => {
  const { choice } = await answer(client, {
    ...greedy, reasoning_effort: "none", continue_final_message: true, add_generation_prompt: false,
    messages: [...kCapital, { role: "assistant", content: "The capital of France" }] });
  assert.equal(choice.content, " is Paris.");
});

test("nano: tool round trip with openai's runTools", async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const runner = client.chat.completions.runTools({
      ...greedy, messages: kWeather, stream,
      tools: [{ type: "function", function: { ...kTool.function, parse: JSON.parse, function: (input) => {
        seen.push(input);
        return JSON.stringify({ temperature: 18 });
      } } }] });
    const content = await runner.finalContent();
    assert.deepEqual(seen, [{ city: "Paris" }]);
    assert.match(content, /18/);
  }
});

test("nano: tool round trip with the ai package", async () => {
  const model = createOpenAICompatible({ name: "millrace", baseURL: `${urlOf("NANO")}/v1` })("nano");
  const seen = [];
  const wish = {
    model, messages: kWeather, temperature: 0, maxOutputTokens: 200, maxRetries: 0, stopWhen: stepCountIs(3),
    tools: { get_weather: aiTool({
      description: kTool.function.description, inputSchema: jsonSchema(kTool.function.parameters),
      execute: async (input) => {
        seen.push(input);
        return { temperature: 18 };
      } }) } };
  const whole = await generateText(wish);
  assert.match(whole.text, /18/);
  const streamed = streamText(wish);
  assert.equal(await streamed.text, whole.text);
  assert.deepEqual(seen, [{ city: "Paris" }, { city: "Paris" }]);
});

test("nano: tool round trip with a langchain agent", async () => {
  const seen = [];
  const agent = createAgent({
    model: new ChatOpenAI({ model: "nano", apiKey: "none", temperature: 0, maxTokens: 200, maxRetries: 0,
                            configuration: { baseURL: `${urlOf("NANO")}/v1` } }),
    tools: [langchainTool((input) => {
      seen.push(input);
      return JSON.stringify({ temperature: 18 });
    }, { name: "get_weather", description: kTool.function.description, schema: kTool.function.parameters })],
  });
  const { messages } = await agent.invoke({ messages: [new HumanMessage(kWeather[0].content)] });
  assert.deepEqual(seen, [{ city: "Paris" }]);
  assert.match(messages.at(-1).content, /18/);
});

test("nano: a client that leaves in mid answer frees the model", async () => {
  const stream = await client.chat.completions.create(
    { ...greedy, messages: kCapital, ignore_eos: true, max_completion_tokens: 8000, stream: true });
  let chunks = 0;
  for await (const chunk of stream) {
    assert.ok(chunk);
    if (++chunks === 5) stream.controller.abort();
  }
  await isIdleWithin("NANO");
});
