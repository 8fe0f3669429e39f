// The web page in a real browser: Debian's Chromium, driven by playwright-core.
//
//   (cd tests/e2e/web && npm ci)
//   node tests/e2e/web_test.mjs                      against the mock server of tests/e2e/web
//   node tests/e2e/web_test.mjs URL                  a server with the script of web/script.mjs
//   node tests/e2e/web_test.mjs URL --any-model      a server whose model says what it likes; the
//                                                    tests that need given texts are left out
//   --screenshots FOLDER                             keeps pictures of the page
//
// Every test starts with an empty browser and ends with the checks that hold for all: no error on
// the console, no request to another origin, nothing refused by the content security policy.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

import { isScripted, kPhone, lastAnswer, mock, pageTest, picture, say, screenshots, scriptedTest, send,
         settle, settled, textOf, watchBodies } from "./web/harness.mjs";
import { kCount } from "./web/scenarios.mjs";

// Answers for the page's own tests; a model of its own gets a question it can know.
const kHello = isScripted ? "say hello" : "What is the capital of France?";

// --- Chat

pageTest("an answer streams in, with its figures", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "60");
  const bodies = watchBodies(page);
  await say(page, kHello);
  assert.equal(bodies.length, 1);
  assert.equal(bodies[0].stream, true);
  assert.deepEqual(bodies[0].messages, [{ role: "user", content: kHello }]);
  if (isScripted) assert.equal(await textOf(page), "Hello! How can I help you today? 🙂");
  const figures = await lastAnswer(page).locator(".figures").innerText();
  assert.match(figures, /\d+ tokens?.* · .*first after .* · prompt \d+ \(\d+ cached\)/);
  assert.match(await page.innerText("#context"), /^[\d,]+ of [\d,]+ tokens of context$/);
  await picture(page, "chat-short");
});

scriptedTest("thinking is folded, shows its time and opens", {}, async (page) => {
  await send(page, "think first");
  const summary = lastAnswer(page).locator("summary");
  await summary.getByText("Thinking").waitFor();
  await settled(page);
  assert.match(await summary.innerText(), /^Thought for [\d.]+ m?s$/);
  const thought = lastAnswer(page).locator(".thinking .markdown");
  assert.equal(await thought.isVisible(), false);
  await summary.click();
  await thought.waitFor();
  assert.match(await thought.innerText(), /Six times seven is 42/);
  assert.equal(await textOf(page), "It is 42.");
});

scriptedTest("an answer stops in mid stream and the server is told", {}, async (page) => {
  for (const stop of [() => page.click("#stop"), () => page.keyboard.press("Escape")]) {
    const aborted = mock?.aborted;
    await send(page, "count slowly");
    await lastAnswer(page).getByText("1 2 3 4 5").waitFor();
    await stop();
    await settled(page);
    assert.match(await lastAnswer(page).locator(".figures").innerText(), /^stopped · \d+ tokens/);
    const text = await textOf(page);
    assert.ok(!text.includes(String(kCount)), text);
    await page.waitForTimeout(300);
    assert.equal(await textOf(page), text);
    if (mock) assert.equal(mock.aborted, aborted + 1);
    assert.ok(await page.locator("#input").evaluate((node) => node === document.activeElement));
    await page.keyboard.press("Control+k");
  }
});

pageTest("asking again keeps the old answer beside the new one", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "20");
  const bodies = watchBodies(page);
  await say(page, kHello);
  await lastAnswer(page).getByLabel("Ask again").click();
  await page.getByText("2 / 2").waitFor();
  await settled(page);
  assert.deepEqual(bodies[1].messages, bodies[0].messages);
  assert.notEqual(bodies[1].seed, bodies[0].seed);
  await lastAnswer(page).getByLabel("Version before").click();
  await page.getByText("1 / 2").waitFor();
});

pageTest("an edited message starts a branch, and the old one is still there", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "10");
  const bodies = watchBodies(page);
  await say(page, "first wording");
  await say(page, "second message");
  await page.locator("article.user").first().getByLabel("Edit message").click();
  const area = page.locator(".edit textarea");
  assert.equal(await area.inputValue(), "first wording");
  await area.fill("better wording");
  await area.press("Enter");
  await settled(page);
  assert.deepEqual(bodies.at(-1).messages, [{ role: "user", content: "better wording" }]);
  assert.equal(await page.locator("article.user").count(), 1);
  await page.locator("article.user").first().getByLabel("Version before").click();
  assert.deepEqual(await page.locator(".bubble").allInnerTexts(), ["first wording", "second message"]);
});

scriptedTest("tools are called, answered by the person, and the answer goes on", {}, async (page) => {
  await page.click("#open-settings");
  await page.click("#example-tools");
  const tools = page.locator('#settings-form [name="tools"]');
  assert.equal(JSON.parse(await tools.inputValue())[0].function.name, "get_weather");
  await page.click('#settings-form button:has-text("Done")');
  const bodies = watchBodies(page);
  await say(page, "use the tools");
  assert.equal(bodies[0].tools.length, 1);
  const cards = lastAnswer(page).locator(".call");
  assert.deepEqual(await cards.locator("h3").allInnerTexts(), ["get_weather", "get_time"]);
  assert.equal(await cards.first().locator("pre").textContent(),
    '{\n  "city": "Paris",\n  "units": [\n    "C",\n    "km/h"\n  ]\n}');
  await picture(page, "tools");
  await page.getByLabel("Result of get_weather").fill("18 degrees and sunny");
  await page.getByLabel("Result of get_time").fill("noon");
  await page.getByLabel("Result of get_time").press("Enter");
  await settled(page);
  assert.equal(await textOf(page), "It is 18 degrees and sunny in Paris.");
  const [, assistant, weather, time] = bodies[1].messages;
  assert.equal(assistant.reasoning_content, "I need the weather and the time.");
  assert.equal(assistant.tool_calls[0].function.name, "get_weather");
  assert.deepEqual(JSON.parse(assistant.tool_calls[1].function.arguments), { zone: "Europe/Paris" });
  assert.deepEqual(weather, { role: "tool", content: "18 degrees and sunny",
                              tool_call_id: assistant.tool_calls[0].id });
  assert.equal(time.tool_call_id, assistant.tool_calls[1].id);
  await picture(page, "tools-answered");

  await page.getByLabel("Edit results").click();
  assert.equal(await page.getByLabel("Result of get_time").inputValue(), "noon");
  await page.getByLabel("Result of get_time").fill("midnight");
  await page.getByLabel("Result of get_time").press("Enter");
  await settled(page);
  assert.equal(bodies[2].messages[3].content, "midnight");
});

// --- Markdown

scriptedTest("markdown becomes structure", {}, async (page) => {
  await say(page, "write markdown");
  const answer = lastAnswer(page).locator("> .markdown");
  for (const [selector, text] of [
    ["h3", "The mill"], ["h4", "Parts"], ["strong", "falling water"], ["em", "motion"],
    ["p code", "wheels"], ["s", "magic"], ["ul ul > li >> nth=0", "buckets"],
    ["ol > li >> nth=1", "let the water in"], ["th >> nth=1", "weight in kg"],
    ["tbody td.right >> nth=0", "1200"], [".code-head span", "python"],
  ]) {
    assert.equal((await answer.locator(selector).innerText()).trim(), text, selector);
  }
  assert.match(await answer.locator("blockquote").innerText(), /Water that has passed\ngrinds/);
  assert.match(await answer.locator("pre").textContent(),
               /^def turn.*\n {4}return wheel \* water {2}# <b>not bold<\/b>$/);
  const link = answer.locator("a");
  assert.equal(await link.getAttribute("href"), "https://example.org/river");
  assert.match(await link.getAttribute("rel"), /noopener/);
  await page.locator("#scroller").evaluate((node) => { node.scrollTop = 0; });
  await picture(page, "markdown");
  await page.locator("#scroller").evaluate((node) => { node.scrollTop = 1e6; });
  await picture(page, "markdown-end");
});

pageTest("markdown that streams only grows on the screen", {}, async (page) => {
  const { kScenarios } = await import("./web/scenarios.mjs");
  const text = kScenarios.find(({ key }) => key === "write markdown").content;
  const shrunk = await page.evaluate(async (text) => {
    const { MarkdownView } = await import("./web/markdown_view.js");
    const view = new MarkdownView();
    const shown = () => {
      const copy = view.root.cloneNode(true);
      for (const head of copy.querySelectorAll(".code-head")) head.remove();
      return copy.textContent;
    };
    view.update(text, false);
    const whole = shown();
    const wrong = [];
    for (let length = 0; length <= text.length; ++length) {
      view.update(text.slice(0, length), true);
      if (!whole.startsWith(shown().trimEnd())) wrong.push([text.slice(0, length).slice(-20), shown().slice(-20)]);
    }
    view.update(text, false);
    if (shown() !== whole) wrong.push("the end differs");
    return wrong;
  }, text);
  assert.deepEqual(shrunk, []);
});

pageTest("hostile markdown is parsed in bounded time", {}, async (page) => {
  const slow = await page.evaluate(async () => {
    const { parseBlocks, parseInline } = await import("./web/markdown.js");
    const unit = ["*a ", "**a ", "_a ", "`", "[", "![", "[a](", "> ", "- ", "  - ", "1. ", "|", "|-",
                  "~~", "\\", "```\n", "# ", "*a **b ", "<http://", "https://a", "[a](<", "a\n", "***"];
    const wrong = [];
    for (const piece of unit) {
      const text = piece.repeat(Math.ceil(50000 / piece.length));
      for (const open of [false, true]) {
        const start = performance.now();
        const walk = (blocks) => blocks.forEach((block) => {
          if (block.text !== undefined) parseInline(block.text, open);
          if (block.blocks) walk(block.blocks);
          if (block.items) block.items.forEach(walk);
        });
        walk(parseBlocks(text, open));
        const time = performance.now() - start;
        if (time > 2000) wrong.push([piece, open, time]);
      }
    }
    return wrong;
  });
  assert.deepEqual(slow, []);
});

pageTest("markdown in the small", {}, async (page) => {
  const wrong = await page.evaluate(async () => {
    const { parseInline } = await import("./web/markdown.js");
    const short = { strong: "b", emphasis: "i", strike: "s", code: "code", link: "a", text: "" };
    const html = (nodes) => nodes.map((n) => {
      const inside = n.children ? html(n.children) : n.text;
      return n.type === "break" ? "/" : short[n.type] ? `<${short[n.type]}>${inside}</>` : inside;
    }).join("");
    return [
      ["a *b* c", "a <i>b</> c"], ["2 * 3 * 4", "2 * 3 * 4"], ["snake_case_name", "snake_case_name"],
      ["**a *b* c**", "<b>a <i>b</> c</>"], ["***x***", "<i><b>x</></>"], ["*a **b** c*", "<i>a <b>b</> c</>"],
      ["**bold *it***", "<b>bold <i>it</></>"], ["`a*b*`", "<code>a*b*</>"], ["``a`b``", "<code>a`b</>"],
      ["\\*no\\*", "*no*"], ["[a](http://x.y)", "<a>a</>"], ["[a](javascript:x)", "[a](javascript:x)"],
      ["array[i] + b[j]", "array[i] + b[j]"], ["see https://x.y/z.", "see <a>https://x.y/z</>."],
      ["(https://x.y/z)", "(<a>https://x.y/z</>)"], ["a\nb", "a/b"], ["~5 ~6", "~5 ~6"], ["*", "*"],
      ["**", "**"], ["**unclosed", "**unclosed"], ["[x", "[x"], ["`x", "`x"], ["<b>", "<b>"],
    ].map(([text, wanted]) => [text, wanted, html(parseInline(text))]).filter(([, a, b]) => a !== b);
  });
  assert.deepEqual(wrong, []);
});

pageTest("arguments are indented while they stream", {}, async (page) => {
  const wrong = await page.evaluate(async () => {
    const { prettyJson } = await import("./web/format.js");
    const values = [{ a: 1, b: [1, "x,{]\\\"", {}, [], null], c: { d: {} } }, [], {}, "a", [[1]]];
    return values.map((value) => [prettyJson(JSON.stringify(value)), JSON.stringify(value, null, 2)])
      .filter(([a, b]) => a !== b);
  });
  assert.deepEqual(wrong, []);
});

pageTest("events are found however the bytes are cut", {}, async (page) => {
  const wrong = await page.evaluate(async () => {
    const { eventData } = await import("./web/api.js");
    const bytes = new TextEncoder().encode(': keep-alive\n\ndata: {"a": "ü🙂"}\n\ndata: [DONE]\r\n\r\n');
    const wrong = [];
    for (let size = 1; size <= bytes.length; ++size) {
      const chunks = (async function* () {
        for (let at = 0; at < bytes.length; at += size) yield bytes.slice(at, at + size);
      })();
      const found = [];
      for await (const data of eventData(chunks)) found.push(data);
      if (JSON.stringify(found) !== JSON.stringify(['{"a": "ü🙂"}', "[DONE]"])) wrong.push(size);
    }
    return wrong;
  });
  assert.deepEqual(wrong, []);
});

scriptedTest("what a model writes is never run, loaded or linked to", {}, async (page) => {
  await say(page, "attack the page");
  await lastAnswer(page).locator("summary").click();
  await lastAnswer(page).getByText("Done with the attack").waitFor();
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  const inside = lastAnswer(page).locator(".markdown");
  for (const tag of ["script", "img", "iframe", "svg:not(.icon)", "[onerror]", "[onload]", "[onmouseover]"]) {
    assert.equal(await inside.locator(tag).count(), 0, tag);
  }
  const links = await inside.locator("a").evaluateAll((nodes) => nodes.map((node) => node.href));
  assert.ok(links.length > 0 && links.every((href) => /^https?:/.test(href)), String(links));
  await picture(page, "attack");

  // The same as a title, a message, a name of a file that is imported.
  const evil = '<img src=x onerror="window.pwned=1">';
  const file = { format: "millrace.conversations", version: 1, conversations: [{
    id: "x", title: evil, updated: 1, leaf: "b", nodes: [
      { id: "a", parent: null, role: "user", content: evil },
      { id: "b", parent: "a", role: "assistant", reasoning: evil, content: evil, usage: { a: evil },
        toolCalls: [{ id: evil, name: evil, arguments: evil }], finishReason: "tool_calls",
        error: { message: evil, status: evil } }] }] };
  await page.setInputFiles("#import-file", { name: "x.json", mimeType: "application/json",
                                             buffer: Buffer.from(JSON.stringify(file)) });
  await page.getByText("1 imported.").waitFor();
  await page.locator("#conversations a").last().click();
  await lastAnswer(page).locator(".problem").waitFor();
  assert.equal(await page.evaluate(() => window.pwned), undefined);
});

// --- Errors

pageTest("what the server refuses stands in the conversation", { expected: [/400/] }, async (page) => {
  await settle(page, "maxTokens", "999999999");
  await say(page, kHello);
  await lastAnswer(page).getByText("maximum context length").waitFor();
  await picture(page, "refused");
  await settle(page, "maxTokens", "5");
  await lastAnswer(page).getByRole("button", { name: "Try again" }).click();
  await settled(page);
  assert.equal(await page.locator("article.assistant").count(), 1);
  assert.match(await lastAnswer(page).locator(".figures").innerText(), /\d token/);
});

scriptedTest("an engine that fails in the middle leaves what was said", {}, async (page) => {
  await say(page, "fail in the middle");
  assert.match(await textOf(page), /^This answer will not/);
  assert.match(await lastAnswer(page).locator(".problem").innerText(),
               /^The server failed \(500\)\n[^]* fail/);
});

pageTest("a stream that ends without its mark is an error", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "10");
  await page.route("**/v1/chat/completions", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: (await response.text()).replace("data: [DONE]\n\n", "") });
  });
  await say(page, kHello);
  await lastAnswer(page).locator(".problem").getByText("ended before the answer was complete").waitFor();
  if (isScripted) assert.match(await textOf(page), /^Hello!/);
});

pageTest("a server that is away is said to be away, and found again",
         { expected: [/ERR_FAILED/] }, async (page) => {
  await page.route("**/v1/**", (route) => route.abort());
  await say(page, kHello);
  await lastAnswer(page).getByText("The server does not answer.").waitFor();
  await page.reload();
  await page.locator("#away").getByText("The server does not answer.").waitFor();
  await picture(page, "away");
  await page.unroute("**/v1/**");
  await page.click("#reconnect");
  await page.waitForSelector("#away", { state: "hidden" });
  await lastAnswer(page).getByRole("button", { name: "Try again" }).click();
  await settled(page);
  assert.equal(await lastAnswer(page).locator(".problem").isVisible(), false);
});

pageTest("a server that wants a key asks for it, and gets it", { expected: [/401/] },
         async (page) => {
  const keys = [];
  await page.route("**/v1/**", (route) => {
    const key = route.request().headers().authorization;
    keys.push(key);
    if (key === "Bearer sesame") return route.continue();
    return route.fulfill({ status: 401, contentType: "application/json", body: JSON.stringify(
      { error: { message: "No such key.", type: "authentication_error", code: "invalid_api_key" } }) });
  });
  await send(page, kHello);
  const field = page.getByLabel("API key", { exact: true }).last();
  await field.waitFor();
  await picture(page, "key");
  await field.fill("sesame");
  await field.press("Enter");
  await settled(page);
  assert.equal(await lastAnswer(page).locator(".problem").isVisible(), false);
  assert.ok(keys.includes("Bearer sesame"));
  await page.reload();
  await page.waitForSelector('#connection[data-state="ready"]');
});

if (mock) {
  pageTest("the page works below a path of a proxy", { path: "prefix/" }, async (page) => {
    await say(page, kHello);
    assert.match(await textOf(page), /^Hello/);
    await page.click("#to-engine");
    await page.locator("#server").getByText("Numerics").waitFor();
    assert.equal(new URL(page.url()).pathname, "/prefix/");
  });
}

// --- Conversations

pageTest("conversations survive a reload, and can be renamed, exported, deleted and imported", {},
         async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "10");
  await say(page, `${kHello} (one)`);
  const answer = await textOf(page);
  await page.keyboard.press("Control+k");
  await say(page, `${kHello} (two)`);
  await page.reload();
  assert.deepEqual(await page.locator("#conversations a").allInnerTexts(),
                   [`${kHello} (two)`, `${kHello} (one)`]);
  assert.equal(await page.locator(".bubble").innerText(), `${kHello} (two)`);
  await page.locator("#conversations a").last().click();
  await page.locator(".bubble").getByText("(one)").waitFor();
  assert.equal(await textOf(page), answer);

  await page.getByLabel(`Rename ${kHello} (one)`).click();
  await page.getByLabel("Title").fill("renamed");
  await page.getByLabel("Title").press("Enter");
  await page.locator("#conversations").getByText("renamed").waitFor();

  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#export")]);
  const file = await readFile(await download.path());
  assert.equal(JSON.parse(file).conversations.length, 2);

  await page.getByLabel("Delete renamed").click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.waitForSelector("#welcome:visible");
  assert.equal(await page.locator("#conversations a").count(), 1);

  await page.setInputFiles("#import-file", { name: "c.json", mimeType: "application/json", buffer: file });
  await page.getByText("2 imported.").waitFor();
  assert.equal(await page.locator("#conversations a").count(), 3);
  await page.setInputFiles("#import-file", { name: "c.json", mimeType: "application/json",
                                             buffer: Buffer.from('{"format": 1}') });
  await page.getByText("Nothing was imported: not a file that this page exported.").waitFor();
});

scriptedTest("an answer goes on while another conversation is on the screen", {}, async (page) => {
  await send(page, "count slowly");
  await lastAnswer(page).getByText("1 2 3").waitFor();
  await page.keyboard.press("Control+k");
  await say(page, "say hello");
  await page.locator("#conversations a").getByText("count slowly").click();
  await settled(page);
  assert.match(await textOf(page), new RegExp(`^1 2 3 .* ${kCount}$`));
});

// --- Settings

pageTest("settings become fields of the request", {}, async (page) => {
  const bodies = watchBodies(page);
  for (const [name, value] of Object.entries({
    system: "Be brief.", effort: "low", temperature: "0.5", topP: "0.9", maxTokens: "7", seed: "11",
    tools: '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]',
  })) await settle(page, name, value);
  await say(page, kHello);
  const { messages, stream_options: _, model: __, ...fields } = bodies[0];
  assert.deepEqual(messages[0], { role: "system", content: "Be brief." });
  assert.deepEqual(fields, {
    thinking: { type: "enabled" }, reasoning_effort: "low", temperature: 0.5, top_p: 0.9,
    max_completion_tokens: 7, seed: 11, stream: true,
    tools: [{ type: "function", function: { name: "f", parameters: { type: "object" } } }],
  });
  await page.reload();
  await settle(page, "thinking", false);
  await page.keyboard.press("Control+k");
  await say(page, kHello);
  assert.deepEqual(bodies[1].thinking, { type: "disabled" });
  assert.equal(bodies[1].reasoning_effort, undefined);
  assert.equal(bodies[1].temperature, 0.5);

  await page.click("#open-settings");
  await page.fill('[name="tools"]', "[{]");
  assert.match(await page.innerText("#tools-error"), /^Not JSON/);
  await page.fill('[name="tools"]', '[{"type": "function"}]');
  assert.match(await page.innerText("#tools-error"), /^Tool 1 needs/);
  await picture(page, "settings");
  await page.click("#reset-settings");
  assert.equal(await page.inputValue('[name="tools"]'), "");
  assert.equal(await page.inputValue('[name="seed"]'), "");
});

pageTest("dark and light follow the system until they are chosen", { colorScheme: "dark" },
         async (page) => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await page.emulateMedia({ colorScheme: "light" });
  const light = await background();
  assert.notEqual(dark, light);
  await page.click("#switch-theme");
  assert.equal(await background(), dark);
  await page.reload();
  assert.equal(await background(), dark);
  await page.click("#switch-theme");
  assert.equal(await background(), light);
  await page.emulateMedia({ colorScheme: "dark" });
  assert.equal(await background(), light);
});

// Contrast of all text that is on the screen against what is behind it, as WCAG AA asks.
async function lowContrast(page) {
  return page.evaluate(() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      return Array.from(canvas.getImageData(0, 0, 1, 1).data);
    };
    const luminance = (colour) => {
      const [r, g, b] = colour.map((v) => v / 255).map((v) => (
        v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
      for (; node; node = node.parentElement) {
        const colour = rgba(getComputedStyle(node).backgroundColor);
        if (colour[3] === 255) return colour;
      }
      return [255, 255, 255];
    };
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !node.checkVisibility({ visibilityProperty: true })) continue;
      if (node.closest(":disabled, .offscreen")) continue;
      const style = getComputedStyle(node);
      const [a, b] = [luminance(rgba(style.color)), luminance(behind(node))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < 4.5) found.add(`${node.tagName}.${node.className} ${ratio.toFixed(2)}: ${node.textContent.slice(0, 30)}`);
    }
    return [...found];
  });
}

for (const colorScheme of ["light", "dark"]) {
  scriptedTest(`text is readable in ${colorScheme}`, { colorScheme, expected: [/400/] }, async (page) => {
    await say(page, "write markdown");
    await settle(page, "maxTokens", "99999");
    await say(page, "say hello");
    assert.deepEqual(await lowContrast(page), []);
    await picture(page, `chat-${colorScheme}`);
    await settle(page, "maxTokens", "");
    await lastAnswer(page).getByRole("button", { name: "Try again" }).click();
    await settled(page);
    await lastAnswer(page).getByLabel("Tokens and probabilities").click();
    await page.locator("#tokens-status").getByText("perplexity").waitFor();
    await page.locator(".token").nth(2).hover();
    assert.deepEqual(await lowContrast(page), []);
    await page.keyboard.press("Escape");
    await page.click("#to-engine");
    await page.waitForTimeout(2500);
    assert.deepEqual(await lowContrast(page), []);
    await picture(page, `engine-${colorScheme}`);
    await page.click("#open-settings");
    assert.deepEqual(await lowContrast(page), []);
    await picture(page, `settings-${colorScheme}`);
  });
}

// --- Token view and repetition

pageTest("tokens show their probability and what else they could have been", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "40");
  await say(page, isScripted ? "think first" : kHello);
  const bodies = watchBodies(page);
  await lastAnswer(page).getByLabel("Tokens and probabilities").click();
  await page.locator("#tokens-status").getByText(/^\d+ tokens?, perplexity [\d.]+\.$/).waitFor();
  assert.equal(bodies[0].logprobs, true);
  assert.equal(bodies[0].top_logprobs, 5);
  const tokens = page.locator(".token");
  const count = await tokens.count();
  assert.ok(count > 5);
  if (isScripted) {
    assert.deepEqual(await page.locator("#tokens-flow h3").allTextContents(), ["thinking", "answer"]);
    const answer = await page.locator(".token-flow").nth(1).locator(".token").allTextContents();
    assert.match(answer.join(""), /It is \*\*42\*\*\./);  // special tokens may stand around it
  }
  await tokens.nth(3).hover();
  await page.locator("#token-detail").getByText("token 4 of").waitFor();
  assert.equal(await page.locator("#token-detail tr.chosen").count(), 1);
  assert.ok(await page.locator("#token-detail tr").count() >= 6);
  const shares = await page.locator("#token-detail .bar").evaluateAll((nodes) => (
    nodes.map((node) => Number(node.style.getPropertyValue("--share")))));
  const sum = shares.reduce((a, b) => a + b);
  assert.ok(Math.abs(sum - 1) < 1e-3, `probabilities add up to ${sum}`);
  await picture(page, "tokens");

  await tokens.first().focus();
  for (const [key, at] of [["ArrowRight", 2], ["ArrowRight", 3], ["ArrowLeft", 2], ["End", count]]) {
    await page.keyboard.press(key);
    await page.locator("#token-detail").getByText(`token ${at} of ${count}`).waitFor();
  }
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#tokens-dialog").isVisible(), false);

  // Recorded with the answer, they need no second request.
  await settle(page, "recordTokens", true);
  await lastAnswer(page).getByLabel("Ask again").click();
  await page.getByText("2 / 2").waitFor();
  await settled(page);
  const before = bodies.length;
  await lastAnswer(page).getByLabel("Tokens and probabilities").click();
  await page.locator("#tokens-status").getByText("perplexity").waitFor();
  assert.equal(bodies.length, before);
});

pageTest("the same request n times has the same answer", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "40");
  await say(page, isScripted ? "think first" : kHello);
  const bodies = watchBodies(page);
  await lastAnswer(page).getByLabel("Same answer, n runs").click();
  await page.fill('[name="runs"]', "6");
  await page.click("#repeat-start");
  await page.locator("#repeat-verdict").getByText("All 6 answers are byte-identical").waitFor();
  assert.match(await page.innerText("#repeat-verdict"), /log-probabilities included\)\.$/);
  assert.equal(await page.locator("#repeat-rows tr").count(), 6);
  assert.equal(await page.getByText("one of 4").count(), 4);
  assert.equal(bodies.length, 6);
  assert.equal(new Set(bodies.map((body) => JSON.stringify(body))).size, 1);
  await picture(page, "repeat-same");
});

pageTest("an answer that differs is found, with the place", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "40");
  await settle(page, "thinking", false);
  await say(page, kHello);
  let requests = 0;
  await page.route("**/v1/chat/completions", async (route) => {
    const isThird = ++requests === 3;
    const response = await route.fetch();
    let body = await response.text();
    if (isThird) body = body.replace(/"content": ?"([^"\\]+)"/, '"content":"Changed $1"');
    await route.fulfill({ response, body });
  });
  await lastAnswer(page).getByLabel("Same answer, n runs").click();
  await page.fill('[name="runs"]', "4");
  await page.fill('[name="together"]', "1");
  await page.click("#repeat-start");
  await page.locator("#repeat-verdict").getByText("Run 3 differs from run 1 in its answer, at character 1").waitFor();
  assert.match(await page.innerText("#repeat-verdict"), /"Changed .* instead of "/);
  assert.equal(await page.getByText("✗ differs").count(), 1);
  await picture(page, "repeat-different");
});

// --- Engine page

pageTest("the engine page shows the counters live and pauses when nobody looks",
         { expected: [/ERR_FAILED/] }, async (page, context) => {
  if (isScripted) await send(page, "count slowly");
  else await say(page, kHello);
  await page.click("#to-engine");
  const card = (name) => page.locator("#figures").getByLabel(name, { exact: true });
  // The scripted engine computes nothing: no rows, no blocks, no experts.
  const hasModel = mock !== null || !isScripted;
  const number = async (name) => Number(await card(name).locator("strong").innerText());
  if (isScripted) {
    await page.waitForFunction(() => (
      parseFloat(document.querySelector('#figures [aria-label="Output"] strong').textContent) > 0));
    assert.equal(await number("Running"), 1);
    if (hasModel) assert.ok(await number("Batch") >= 1);
  }
  await page.locator("#server").getByText("Numerics").waitFor();
  if (screenshots) await page.waitForTimeout(4000);
  await picture(page, "engine-live");
  for (const row of ["Time to first token", "Between tokens", "Whole request"]) {
    assert.equal(await page.locator("#latencies tr", { hasText: row }).locator("td").count(), 3);
  }
  assert.match(await card("KV cache").locator(".note").innerText(), /of [\d,]+ blocks of \d+ tokens; \d+/);
  await page.waitForSelector('#figures [aria-label="Output"] path.line[d^="M"]', { state: "attached" });

  assert.equal(await page.locator("#experts").isVisible(), hasModel);
  if (hasModel) {
    assert.ok(await page.evaluate(() => {
      const canvas = document.getElementById("experts-canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return data.some((value) => value > 0);
    }));
    await page.locator("#experts-canvas").hover({ position: { x: 30, y: 20 } });
    assert.match(await page.innerText("#expert"), /^layer \d+, expert \d+: [\d,]+ tokens$/);
    await page.locator("#experts summary").click();
    assert.ok(await page.locator("#experts-table tr").count() > 0);
    await picture(page, "experts");
    await page.selectOption("#experts-span", "minute");
  }

  await page.route("**/v1/millrace/stats", (route) => route.abort());
  await page.locator("#engine-away").getByText("The server does not answer.").waitFor();
  await picture(page, "engine-away");
  await page.unroute("**/v1/millrace/stats");
  await page.waitForSelector("#engine-away", { state: "hidden" });

  let polls = 0;
  page.on("request", (request) => { polls += request.url().endsWith("/stats"); });
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
  polls = 0;
  await page.waitForTimeout(2500);
  assert.equal(polls, 0);
  await page.evaluate(() => {
    delete document.hidden;
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await page.waitForTimeout(300);
  assert.ok(polls > 0);
  await page.click("#to-chat");
  polls = 0;
  await page.waitForTimeout(1500);
  assert.equal(polls, 0);
});

// --- Phone and keyboard

async function sidewaysScroll(page) {
  return page.evaluate(() => {
    const wide = ["html", "body", "#scroller", "#engine", "dialog[open]"].filter((selector) => {
      const node = document.querySelector(selector);
      return node?.checkVisibility() && node.scrollWidth > node.clientWidth;
    });
    return wide;
  });
}

// Every control that is shown lies within the width of the screen.
async function outOfReach(page) {
  return page.evaluate(() => {
    const root = document.querySelector("dialog[open]") ?? document;
    return Array.from(root.querySelectorAll("button, a, input, select, textarea, summary"))
      .filter((node) => node.checkVisibility({ visibilityProperty: true }) &&
                        !node.closest(".table, .code, .offscreen"))
      .map((node) => [node.outerHTML.slice(0, 80), node.getBoundingClientRect()])
      .filter(([, box]) => box.width > 0 && (box.left < -0.5 || box.right > innerWidth + 0.5))
      .map(([text]) => text);
  });
}

pageTest("everything fits on a phone", { viewport: kPhone, hasTouch: true, isMobile: true },
         async (page) => {
  const fits = async (name) => {
    await page.waitForTimeout(300);  // of the drawer's way
    await picture(page, `phone-${name}`);
    assert.deepEqual(await sidewaysScroll(page), [], name);
    assert.deepEqual(await outOfReach(page), [], name);
  };
  if (!isScripted) await settle(page, "maxTokens", "60");
  await fits("welcome");
  await say(page, isScripted ? "write markdown" : kHello);
  await fits("chat");
  if (isScripted) {
    await page.locator("#scroller").evaluate((node) => { node.scrollTop = 0; });
    await fits("chat-top");
    await say(page, "use the tools");
    await fits("tools");
  }
  assert.equal(await page.locator("#sidebar").isVisible(), false);
  await page.tap("#open-sidebar");
  await page.waitForSelector("#sidebar:visible");
  await fits("drawer");
  await page.mouse.click(380, 400);
  await page.waitForSelector("#sidebar", { state: "hidden" });
  await page.tap("#open-sidebar");
  await page.tap("#new-chat");
  await page.waitForSelector("#sidebar", { state: "hidden" });
  await page.waitForSelector("#welcome:visible");
  await say(page, kHello);
  await page.tap('article.assistant [aria-label="Tokens and probabilities"]');
  await page.locator("#tokens-status").getByText("perplexity").waitFor();
  await page.locator(".token").first().tap();
  await page.locator("#token-detail").getByText("token 1 of").waitFor();
  await fits("tokens");
  await page.tap("#tokens-dialog .close");
  await page.tap('article.assistant [aria-label="Same answer, n runs"]');
  await page.tap("#repeat-start");
  await page.locator("#repeat-verdict").getByText("byte-identical").waitFor();
  await fits("repeat");
  await page.tap("#repeat-dialog .close");
  await page.tap("#open-settings");
  await fits("settings");
  await page.tap("#settings-dialog .close");
  await page.tap("#open-help");
  await fits("help");
  await page.tap("#help-dialog .close");
  await page.tap("#to-engine");
  await page.locator("#server").getByText("Numerics").waitFor();
  await fits("engine");
});

pageTest("everything can be done with the keyboard", {}, async (page) => {
  const focused = () => page.evaluate(() => (
    document.activeElement.getAttribute("aria-label") ?? document.activeElement.id));
  assert.equal(await page.evaluate(() => document.activeElement.id), "input");
  if (!isScripted) await settle(page, "maxTokens", "20");
  await page.focus("#input");
  await page.keyboard.type(kHello);
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("second line");
  assert.equal(await page.inputValue("#input"), `${kHello}\nsecond line`);
  await page.keyboard.press("Enter");
  await settled(page);
  assert.equal(await page.inputValue("#input"), "");

  // Backwards from the field: every control of the answer, and each shows that it has the focus.
  const seen = [];
  for (let i = 0; i < 30 && !seen.includes("Edit message"); ++i) {
    await page.keyboard.press("Shift+Tab");
    seen.push(await focused());
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.notEqual(outline, "none", seen.at(-1));
  }
  for (const name of ["Same answer, n runs", "Tokens and probabilities", "Ask again", "Copy answer",
                      "Edit message"]) {
    assert.ok(seen.includes(name), `${name} of ${seen}`);
  }
  await page.keyboard.press("Enter");
  await page.keyboard.press("Escape");
  assert.equal(await focused(), "Edit message");
  await page.keyboard.press("?");
  await page.waitForSelector("#help-dialog:visible");
  await picture(page, "help");
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "input");
  assert.equal(await page.inputValue("#input"), "");
  await page.keyboard.press("Control+k");
  await page.waitForSelector("#welcome:visible");
});

scriptedTest("nothing moves for who wants less motion", { reducedMotion: "reduce" }, async (page) => {
  await send(page, "count slowly");
  await lastAnswer(page).getByText("1 2 3").waitFor();
  assert.ok(await page.locator("#conversations .pulse").isVisible());
  assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
  await page.emulateMedia({ reducedMotion: "no-preference" });
  assert.ok(await page.evaluate(() => document.getAnimations().length) > 0);
});

pageTest("every control has a name, and answers are read out by blocks", {}, async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "60");
  await say(page, isScripted ? "write markdown" : kHello);
  const nameless = await page.evaluate(() => (
    Array.from(document.querySelectorAll("button, a, input, select, textarea, summary"))
      .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() ||
                          node.labels?.[0]?.textContent.trim()))
      .map((node) => node.outerHTML)));
  assert.deepEqual(nameless, []);
  const log = page.locator("#announcer");
  assert.equal(await log.getAttribute("aria-live"), "polite");
  const read = await log.locator("p").allTextContents();
  assert.equal(read[0], "Answering");
  assert.equal(read.at(-1), "End of the answer");
  if (isScripted) assert.ok(read.includes("The mill") && read.includes("The end."), String(read));
});

pageTest("code and answers are copied as they were written", { permissions: ["clipboard-read", "clipboard-write"] },
         async (page) => {
  if (!isScripted) await settle(page, "maxTokens", "20");
  await say(page, isScripted ? "write markdown" : kHello);
  await lastAnswer(page).getByLabel("Copy answer").click();
  await lastAnswer(page).getByLabel("Copied").waitFor();
  const copied = () => page.evaluate(() => navigator.clipboard.readText());
  const answer = await page.evaluate(() => {
    const key = Object.keys(localStorage).find((name) => name.startsWith("millrace.conversation."));
    return JSON.parse(localStorage[key]).nodes.at(-1).content;
  });
  assert.equal(await copied(), answer);
  if (!isScripted) return;
  await lastAnswer(page).getByLabel("Copy code").click();
  await lastAnswer(page).locator(".code").getByLabel("Copied").waitFor();
  assert.match(await copied(), /^def turn\(wheel, water\):\n {4}return/);
});
