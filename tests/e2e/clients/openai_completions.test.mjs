// The older completions interface through the `openai` package.

import assert from "node:assert/strict";
import { test } from "node:test";

import { openai } from "./harness.mjs";
import { kFault, kReplies, kUnicode } from "./script.mjs";

const scripted = openai("SCRIPTED");
const nano = openai("NANO");

async function addUp(stream) {
  const choices = [];
  let usage = null;
  for await (const chunk of stream) {
    assert.equal(chunk.object, "text_completion");
    if (chunk.choices.length === 0) usage = chunk.usage;
    for (const { index, text, logprobs, finish_reason, stop_reason } of chunk.choices) {
      const choice = choices[index] ??= { index, text: "", logprobs: null, finish_reason: null };
      assert.equal(choice.finish_reason, null, "nothing follows the finish reason");
      assert.ok(text !== "" || finish_reason !== null, "no empty chunk");
      choice.text += text;
      for (const [key, values] of Object.entries(logprobs ?? {})) {
        ((choice.logprobs ??= {})[key] ??= []).push(...values);
      }
      Object.assign(choice, { finish_reason, stop_reason });
    }
  }
  return { choices, usage };
}

// The same, streamed and not.
async function complete(client, params) {
  const whole = await client.completions.create(params);
  const streamed = await addUp(await client.completions.create(
    { ...params, stream: true, stream_options: { include_usage: true } }));
  const choices = whole.choices.map(({ index, text, logprobs, finish_reason, stop_reason }) => (
    { index, text, logprobs, finish_reason, stop_reason }));
  assert.deepEqual(streamed, { choices, usage: whole.usage });
  return whole;
}

const greedy = { model: "nano", temperature: 0, max_tokens: 8 };

test("completions: a text is continued", async () => {
  const { choices, id, object, usage } = await complete(nano, { ...greedy, max_tokens: 2,
                                                                prompt: "The capital of France is" });
  assert.equal(choices[0].text, " Paris.\n");
  assert.equal(choices[0].finish_reason, "length");
  assert.match(id, /^cmpl-/);
  assert.equal(object, "text_completion");
  assert.equal(usage.completion_tokens, 2);
});

test("completions: token ids are continued as the text that they are", async () => {
  const { tokens } = await nano.post("/tokenize", { body: { model: "nano", prompt: "Once upon a time" } });
  const text = await complete(nano, { ...greedy, prompt: "Once upon a time" });
  const ids = await complete(nano, { ...greedy, prompt: tokens });
  assert.equal(ids.choices[0].text, text.choices[0].text);
  assert.deepEqual(ids.usage, text.usage);
});

test("completions: several prompts, several choices, prompt by prompt", async () => {
  const prompts = ["Once upon a time", "In the beginning", "The river"];
  const alone = [];
  for (const prompt of prompts) {
    alone.push(...(await complete(nano, { ...greedy, prompt })).choices.map(({ text }) => text));
  }
  const together = await complete(nano, { ...greedy, prompt: prompts, n: 2 });
  assert.deepEqual(together.choices.map(({ index }) => index), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(together.choices.map(({ text }) => text), alone.flatMap((text) => [text, text]));
});

test("completions: echo puts the prompt in front", async () => {
  const prompt = `Of ${kUnicode}`;
  const plain = await complete(nano, { ...greedy, prompt });
  const echoed = await complete(nano, { ...greedy, prompt, echo: true });
  assert.equal(echoed.choices[0].text, prompt + plain.choices[0].text);
});

test("completions: log-probabilities of the answer, and with echo of the prompt", async () => {
  const prompt = "The capital of France is";
  const plain = await complete(nano, { ...greedy, prompt, logprobs: 2 });
  const { tokens, token_logprobs, top_logprobs, text_offset } = plain.choices[0].logprobs;
  assert.equal(tokens.join(""), plain.choices[0].text);
  assert.ok(token_logprobs.every((logprob) => logprob <= 0));
  assert.ok(top_logprobs.every((top) => Object.keys(top).length === 2));
  const offsets = tokens.map((_, i) => tokens.slice(0, i).join("").length);
  assert.deepEqual(text_offset, offsets);

  const echoed = await complete(nano, { ...greedy, prompt, logprobs: 2, echo: true });
  const all = echoed.choices[0].logprobs;
  assert.equal(all.token_logprobs[0], null);
  assert.equal(all.tokens.slice(-tokens.length).join(""), plain.choices[0].text);
  assert.deepEqual(all.token_logprobs.slice(-tokens.length), token_logprobs);
  assert.ok(all.token_logprobs.slice(1).every((logprob) => logprob <= 0));
});

test("completions: max_tokens 0 with echo scores a prompt", async () => {
  const { choices, usage } = await nano.completions.create(
    { ...greedy, prompt: "Once upon a time", max_tokens: 0, echo: true, logprobs: 0 });
  assert.equal(choices[0].text, "Once upon a time");
  assert.equal(usage.completion_tokens, 0);
  assert.equal(choices[0].logprobs.tokens.length, usage.prompt_tokens);
});

test("completions: stop strings, cut characters and tags are text", async () => {
  const scriptedText = { model: "scripted", max_tokens: 500 };
  const { reasoning, content } = kReplies.unicode;
  const whole = await complete(scripted, { ...scriptedText, prompt: "[unicode]" });
  assert.equal(whole.choices[0].text.replace("</think>", ""), reasoning + content);
  const stopped = await complete(scripted, { ...scriptedText, prompt: "[unicode]", stop: "日本" });
  assert.equal(stopped.choices[0].text, reasoning.slice(0, reasoning.indexOf("日本")));
  assert.equal(stopped.choices[0].stop_reason, "日本");
});

test("completions: a fault in mid stream is an exception", async () => {
  await assert.rejects(async () => {
    const stream = await scripted.completions.create(
      { model: "scripted", prompt: "[breaks]", max_tokens: 500, stream: true });
    for await (const chunk of stream) assert.equal(chunk.choices[0].finish_reason, null);
  }, (error) => error.message.includes(kFault));
});

test("completions: the default is 16 tokens", async () => {
  const { usage } = await complete(scripted, { model: "scripted", prompt: "[endless]" });
  assert.equal(usage.completion_tokens, 16);
});

test("completions: a prompt is cut to the tokens that are asked for, at either side", async () => {
  const prompt = Array.from({ length: 50 }, (_, i) => 300 + i);
  for (const [truncation_side, kept] of [["left", prompt.slice(-5)], ["right", prompt.slice(0, 5)]]) {
    const cut = await complete(nano, { ...greedy, prompt, truncate_prompt_tokens: 5, truncation_side });
    const short = await complete(nano, { ...greedy, prompt: kept });
    assert.equal(cut.usage.prompt_tokens, 5);
    assert.equal(cut.choices[0].text, short.choices[0].text);
  }
});
