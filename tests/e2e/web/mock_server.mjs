// A server with the interface of `millrace serve` and scripted replies, for tests of the page.
//
//   node mock_server.mjs [PORT]      for a person with a browser
//
// Its answers are functions of the request. Streams are framed as the real server frames them: the
// opening chunk together with the first token, one chunk per token, finish, usage, [DONE].

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";

import { kScenarios, piecesOf } from "./scenarios.mjs";

const kWeb = new URL("../../../web/", import.meta.url);
const kModel = "millrace-mock";
const kMaxModelLen = 8192;
const kPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
  "img-src 'self' data:; base-uri 'none'; form-action 'none'";
const kTypes = { html: "text/html; charset=utf-8", css: "text/css; charset=utf-8",
                 js: "text/javascript; charset=utf-8", svg: "image/svg+xml" };
const kLayers = 12;
const kExperts = 64;

// Equal texts have equal numbers in (0, 1).
function fraction(text) {
  let hash = 2166136261;
  for (let i = 0; i < text.length; ++i) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619) >>> 0;
  return (hash % 9973 + 0.5) / 9973;
}

function tokenEntry(token, logprob) {
  return { token, logprob, bytes: [...Buffer.from(token)] };
}

// Log-probabilities of a token, with the chosen one first or second.
function logprobsOf(token, position, count) {
  const p = 0.3 + 0.7 * fraction(`${position}:${token}`);
  const others = [];
  let rest = 1 - p;
  for (let i = 1; i < count; ++i) {
    rest *= 0.6;
    others.push(tokenEntry(` other${i}`, Math.log(rest * 0.6)));
  }
  const chosen = tokenEntry(token, Math.log(p));
  const top = [chosen, ...others].slice(0, count).sort((a, b) => b.logprob - a.logprob);
  return { content: [{ ...chosen, top_logprobs: top }] };
}

// The deltas of a reply, one for each token.
function deltasOf({ reasoning = "", content = "", calls = [] }) {
  const deltas = piecesOf(reasoning).map((piece) => (
    [piece, { reasoning_content: piece, reasoning: piece }]));
  deltas.push(...piecesOf(content).map((piece) => [piece, { content: piece }]));
  calls.forEach((call, index) => {
    const id = `call_${index}`.padEnd(29, "abcdefgh");
    const head = { index, id, type: "function", function: { name: call.name, arguments: "" } };
    deltas.push([call.name, { tool_calls: [head] }]);
    for (const piece of piecesOf(call.arguments)) {
      deltas.push([piece, { tool_calls: [{ index, function: { arguments: piece } }] }]);
    }
  });
  return deltas;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class MockServer {
  requests = [];  // bodies of chat completions, as they came
  running = 0;
  aborted = 0;
  startedAt = Date.now();
  tokens = { prompt_computed: 0, prompt_cached: 0, output: 0 };
  steps = { count: 0, rows: 0 };

  // Resolves to the URL of the page.
  async start(port = 0) {
    this.server = createServer((request, response) => this.handle(request, response));
    await new Promise((resolve) => this.server.listen(port, "127.0.0.1", resolve));
    return `http://127.0.0.1:${this.server.address().port}/`;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }

  async handle(request, response) {
    const path = request.url.replace(/^\/prefix(?=\/)/, "");  // as behind a proxy
    const route = `${request.method} ${path}`;
    if (route === "GET /") return this.sendFile(response, "index.html");
    if (route.startsWith("GET /web/")) return this.sendFile(response, path.slice(5));
    if (route === "GET /v1/models") return this.sendJson(response, 200, this.models());
    if (route === "GET /v1/millrace/stats") return this.sendJson(response, 200, this.stats());
    if (route === "POST /v1/chat/completions") return this.chat(request, response);
    this.sendError(response, 404, "not_found_error", null, "There is nothing here.");
  }

  async sendFile(response, name) {
    if (!/^[a-z_]+\.(html|css|js|svg)$/.test(name)) {
      return this.sendError(response, 404, "not_found_error", null, "There is no such file.");
    }
    const body = await readFile(new URL(name, kWeb));
    response.writeHead(200, { "Content-Type": kTypes[name.split(".").at(-1)],
                              "Content-Security-Policy": kPolicy });
    response.end(body);
  }

  sendJson(response, status, body) {
    response.writeHead(status, { "Content-Type": "application/json" });
    response.end(JSON.stringify(body));
  }

  sendError(response, status, type, code, message, param = null) {
    this.sendJson(response, status, { error: { message, type, param, code } });
  }

  models() {
    return { object: "list", data: [{ id: kModel, object: "model", created: 0, owned_by: "millrace",
                                      root: kModel, parent: null, max_model_len: kMaxModelLen }] };
  }

  stats() {
    const experts = Array.from({ length: kLayers }, (_, layer) => (
      { layer: layer + 3, tokens: Array.from({ length: kExperts }, (_, expert) => (
        Math.floor(this.steps.rows * 2 * fraction(`${layer},${expert}`)))) }));
    const used = this.running * 7;
    const latency = (p50) => ({ p50, p90: p50 * 1.7, p99: p50 * 3.1 });
    return {
      model: kModel, version: "0.0.0-mock", numerics_id: "mock", isa: "AVX2", threads: 2,
      uptime_s: (Date.now() - this.startedAt) / 1000, max_model_len: kMaxModelLen,
      requests: { running: this.running, waiting: 0, paused: 0, max_num_seqs: 256,
                  max_waiting: 1024 },
      tokens: this.tokens, steps: this.steps, experts,
      kv: { blocks_used: used, blocks_total: 1000, block_size: 64, bytes: 1000 * 57344 },
      latency_s: this.tokens.output > 0
        ? { ttft: latency(0.021), itl: latency(0.0043), e2e: latency(0.84) }
        : { ttft: null, itl: null, e2e: null },
    };
  }

  async chat(request, response) {
    let text = "";
    for await (const chunk of request) text += chunk;
    const body = JSON.parse(text);
    this.requests.push(body);
    if (body.max_completion_tokens > kMaxModelLen) {
      return this.sendError(response, 400, "invalid_request_error", "context_length_exceeded",
        `This model's maximum context length is ${kMaxModelLen} tokens, but ` +
        `${body.max_completion_tokens} were requested.`, "max_completion_tokens");
    }
    const prompt = JSON.stringify(body.messages);
    const [scenario = { content: "I have no script for this." }] = kScenarios
      .filter(({ key }) => prompt.includes(key)).sort((a, b) => b.key.length - a.key.length);
    await this.stream(response, body, scenario, piecesOf(prompt).length);
  }

  async stream(response, body, scenario, promptTokens) {
    const deltas = deltasOf(scenario).slice(0, body.max_completion_tokens);
    const isCut = deltas.length < deltasOf(scenario).length;
    const cached = Math.floor(promptTokens / 2);
    const id = `chatcmpl-${this.requests.length}`;
    let made = 0;
    let reasoned = 0;
    const usage = () => ({
      prompt_tokens: promptTokens, completion_tokens: made, total_tokens: promptTokens + made,
      prompt_tokens_details: { cached_tokens: cached },
      completion_tokens_details: { reasoning_tokens: reasoned },
    });
    const options = body.stream_options ?? {};
    const event = (choices, withUsage) => {
      const chunk = { id, object: "chat.completion.chunk", created: 1790000000, model: kModel,
                      choices, usage: withUsage ? usage() : null };
      return `data: ${JSON.stringify(chunk)}\n\n`;
    };
    const choice = (delta, logprobs = null, finish = null) => (
      event([{ index: 0, delta, logprobs, finish_reason: finish }], options.continuous_usage_stats));

    let isGone = false;
    ++this.running;
    response.on("close", () => { isGone = true; });
    this.tokens.prompt_cached += cached;
    this.tokens.prompt_computed += promptTokens - cached;
    this.steps.rows += promptTokens;
    try {
      for (const [token, delta] of deltas) {
        await sleep(scenario.delayMs ?? 1);
        if (isGone) return void ++this.aborted;
        if (made === scenario.failAt) {
          const error = { message: "The engine failed at this step.", type: "server_error",
                          param: null, code: null };
          return void response.end(`data: ${JSON.stringify({ error })}\n\ndata: [DONE]\n\n`);
        }
        const logprobs = body.logprobs ? logprobsOf(token, made, body.top_logprobs ?? 0) : null;
        if (made === 0) {
          response.writeHead(200, { "Content-Type": "text/event-stream; charset=utf-8",
                                    "Cache-Control": "no-cache", "X-Accel-Buffering": "no" });
          response.write(choice({ role: "assistant", content: "" }));
        }
        ++made;
        if (delta.reasoning) ++reasoned;
        ++this.tokens.output;
        ++this.steps.count;
        this.steps.rows += this.running;
        response.write(choice(delta, logprobs));
      }
      const finish = isCut ? "length" : scenario.calls ? "tool_calls" : "stop";
      response.write(choice({}, null, finish));
      if (options.include_usage) response.write(event([], true));
      response.end("data: [DONE]\n\n");
    } finally {
      --this.running;
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  console.log(await new MockServer().start(Number(process.argv[2] ?? 8001)));
}
