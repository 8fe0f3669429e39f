// What goes wrong, as the `openai` package sees it.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

import { answer, ask, countingFetch, gauge, isIdleWithin, kKey, kLimitedKey, openai, urlOf } from "./harness.mjs";
import { kFault, kReplies } from "./script.mjs";

const client = openai("SCRIPTED");
const model = "scripted";
const chat = (params, own = client) => own.chat.completions.create({ model, ...params });

test("openai: a wrong key is refused, the right one is taken from either header", async () => {
  for (const apiKey of ["sk-wrong", kKey + "x", kKey.slice(1)]) {
    await assert.rejects(chat({ messages: ask("plain") }, openai("KEYED", { apiKey })), (error) => {
      assert.ok(error instanceof OpenAI.AuthenticationError);
      assert.equal(error.status, 401);
      assert.equal(error.code, "invalid_api_key");
      assert.equal(error.headers.get("www-authenticate"), "Bearer");
      assert.ok(!error.message.includes(kKey));
      return true;
    });
  }
  const bearer = openai("KEYED", { apiKey: kKey });
  const header = openai("KEYED", { defaultHeaders: { Authorization: null, "x-api-key": kKey } });
  for (const own of [bearer, header]) {
    const { choice } = await answer(own, { messages: ask("plain") });
    assert.equal(choice.content, kReplies.plain.content);
    assert.equal((await own.models.list()).data.length, 1);
  }
});

test("openai: a key's limit is its own, and it is told when to come again", async () => {
  const limited = openai("KEYED", { apiKey: kLimitedKey });
  const busy = await chat({ messages: ask("endless"), stream: true }, limited);
  await assert.rejects(chat({ messages: ask("plain") }, limited), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.code, "rate_limit_exceeded");
    assert.match(error.headers.get("retry-after"), /^[1-9]\d*$/);
    return true;
  });
  await answer(openai("KEYED", { apiKey: kKey }), { messages: ask("plain") });
  busy.controller.abort();
  await isIdleWithin("KEYED");
  await answer(limited, { messages: ask("plain") });
});

test("openai: another model is not found", async () => {
  await assert.rejects(chat({ model: "gpt-5", messages: ask("plain") }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    assert.equal(error.param, "model");
    assert.match(error.requestID, /^\w+$/);
    return true;
  });
});

test("openai: interfaces that are not there say so", async () => {
  await assert.rejects(client.embeddings.create({ model, input: "a" }), { status: 501 });
  await assert.rejects(client.get("/nothing"), { status: 404 });
});

test("openai: a wrong value names its field", async () => {
  for (const [fields, param] of [
    [{ temperature: "hot" }, "temperature"], [{ temperature: 2.5 }, "temperature"], [{ top_p: 0 }, "top_p"],
    [{ n: 0 }, "n"], [{ max_tokens: 0 }, "max_tokens"], [{ stop: [""] }, "stop"],
    [{ presence_penalty: 3 }, "presence_penalty"], [{ stream_options: { include_usage: true } }, "stream_options"],
    [{ tools: [{ type: "other" }] }, "tools[0].type"],
    [{ tools: [{ type: "function", function: {} }] }, "tools[0].function.name"],
    [{ messages: [] }, "messages"], [{ messages: [{ role: "nobody", content: "a" }] }, "messages[0].role"],
    [{ logit_bias: { 4096000: 1 } }, "logit_bias"], [{ seed: "x" }, "seed"],
  ]) {
    await assert.rejects(chat({ messages: ask("plain"), ...fields }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, JSON.stringify(fields));
      assert.ok(error.param?.startsWith(param), `${JSON.stringify(fields)}: ${error.param}: ${error.message}`);
      assert.ok(["invalid_value", "missing_required_parameter"].includes(error.code), error.code);
      return true;
    });
  }
  await assert.rejects(client.chat.completions.create({ model }),
                       { status: 400, param: "messages", code: "missing_required_parameter" });
});

test("openai: what does not fit names the maximum context length and both numbers", async () => {
  const { max_model_len } = await client.models.retrieve("scripted");
  for (const stream of [false, true]) {
    const wish = { messages: ask("plain"), max_tokens: max_model_len, stream };
    await assert.rejects(chat(wish), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.code, "context_length_exceeded");
      assert.match(error.message, new RegExp(`maximum context length is ${max_model_len} tokens.* \\d+`));
      return true;
    });
    const text = "word ".repeat(max_model_len);
    await assert.rejects(chat({ messages: [{ role: "user", content: text }], stream }),
                         { status: 400, code: "context_length_exceeded" });
  }
});

test("openai: a fault in mid stream is an exception, behind what there was", async () => {
  const { reasoning, content } = kReplies.breaks;
  for (const fields of [{}, { stream_options: { include_usage: true } }, { n: 2 }]) {
    let text = "";
    await assert.rejects(async () => {
      for await (const chunk of await chat({ messages: ask("breaks"), stream: true, ...fields })) {
        if (chunk.choices[0].index === 0) text += chunk.choices[0].delta.content ?? "";
        assert.equal(chunk.choices[0].finish_reason, null, "a fault is no finish reason");
      }
    }, (error) => {
      assert.ok(error instanceof OpenAI.APIError);
      assert.equal(error.type, "server_error");
      assert.ok(error.message.includes(kFault), error.message);
      return true;
    });
    assert.ok(text.length > 10 && content.startsWith(text), text);
  }
  assert.ok(reasoning);
  const helper = client.chat.completions.stream({ model, messages: ask("breaks") });
  await assert.rejects(helper.finalMessage(), OpenAI.APIError);
  await assert.rejects(chat({ messages: ask("breaks") }), { status: 500, type: "server_error" });
  await isIdleWithin("SCRIPTED");
});

test("openai: a fault before the first token has a status of its own, streamed or not", async () => {
  for (const stream of [false, true]) {
    await assert.rejects(chat({ messages: ask("fails at once"), stream }),
                         (error) => error instanceof OpenAI.InternalServerError && error.status === 500);
  }
});

test("openai: a client whose time is over tries again and then gives up, and its places are free", async () => {
  const fetch = countingFetch();
  const hasty = openai("SCRIPTED", { timeout: 150, maxRetries: 1, fetch });
  await assert.rejects(chat({ messages: ask("slowly") }, hasty), OpenAI.APIConnectionTimeoutError);
  assert.deepEqual(fetch.statuses, ["AbortError", "AbortError"]);
  await isIdleWithin("SCRIPTED");
});

test("openai: a deadline of the request's own ends it", async () => {
  const options = { headers: { "X-Request-Timeout-Ms": "200" } };
  await assert.rejects(client.chat.completions.create({ model, messages: ask("slowly") }, options),
                       { status: 408 });
  const stream = await client.chat.completions.create(
    { model, messages: ask("endless"), stream: true }, options);
  let last;
  for await (const chunk of stream) last = chunk;
  assert.equal(last.choices[0].finish_reason, "abort");
});

for (const [server, status, Kind, code] of [
  ["BUSY_503", 503, OpenAI.InternalServerError, "overloaded"],
  ["BUSY_429", 429, OpenAI.RateLimitError, "queue_full"],
]) {
  test(`openai: a busy server says ${status} and when to come again, and the client does`, async () => {
    const busy = await openai(server).chat.completions.create(
      { model, messages: ask("endless"), stream: true });
    await assert.rejects(chat({ messages: ask("plain") }, openai(server)), (error) => {
      assert.ok(error instanceof Kind);
      assert.equal(error.status, status);
      assert.equal(error.code, code);
      assert.match(error.headers.get("retry-after"), /^[1-9]\d*$/);
      return true;
    });
    const fetch = countingFetch();
    const start = performance.now();
    const patient = chat({ messages: ask("plain") }, openai(server, { maxRetries: 5, fetch }));
    while (fetch.statuses.length === 0) await new Promise(setImmediate);
    busy.controller.abort();
    assert.equal((await patient).choices[0].message.content, kReplies.plain.content);
    assert.deepEqual(fetch.statuses, [status, 200]);
    assert.ok(performance.now() - start > 900, "it waited as long as it was told to");
    assert.equal(await gauge(server, "num_requests_running"), 0);
  });
}
