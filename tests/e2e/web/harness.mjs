// What the tests of the page share: the server, the browser, a page that is checked when it is left.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { after, before, test } from "node:test";

import { chromium } from "playwright-core";

import { MockServer } from "./mock_server.mjs";

const args = process.argv.slice(2);
const takeFlag = (name, hasValue) => {
  const at = args.indexOf(name);
  return at < 0 ? null : args.splice(at, hasValue ? 2 : 1).at(-1);
};
export const screenshots = takeFlag("--screenshots", true);
export const isScripted = !takeFlag("--any-model", false);
export const mock = args.length === 0 ? new MockServer() : null;

const kTimeout = 30000;  // generous, for machines that do other work
const kDesktop = { width: 1200, height: 800 };
export const kPhone = { width: 390, height: 844 };

let url, browser;

before(async () => {
  url = mock ? await mock.start() : args[0].replace(/\/?$/, "/");
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
                                    args: ["--no-sandbox", "--disable-gpu"] });
  if (screenshots) await mkdir(screenshots, { recursive: true });
});

after(async () => {
  await browser?.close();
  mock?.stop();
});

// One page of a fresh browser profile. `expected` are patterns of console errors that the test
// provokes: browsers log every failed request.
async function withPage({ viewport = kDesktop, expected = [], path = "", ...options }, check) {
  const context = await browser.newContext({ viewport, ...options });
  context.setDefaultTimeout(kTimeout);
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(`uncaught: ${error.stack}`));
  page.on("console", (message) => {
    if (message.type() !== "error" && message.type() !== "warning") return;
    if (!expected.some((pattern) => pattern.test(message.text()))) problems.push(message.text());
  });
  page.on("request", (request) => {
    const target = new URL(request.url());
    const isOwn = target.origin === new URL(url).origin || target.protocol === "blob:";
    if (!isOwn) problems.push(`request to ${request.url()}`);
  });
  try {
    await page.goto(url + path);
    await page.waitForSelector('#connection[data-state="ready"]');
    await check(page, context);
    assert.deepEqual(problems, []);
  } finally {
    await context.close();
  }
}

export function pageTest(name, options, check) {
  test(name, { timeout: 4 * kTimeout }, () => withPage(options, check));
}

export function scriptedTest(name, options, check) {
  if (isScripted) pageTest(name, options, check);
}

export async function picture(page, name) {
  if (screenshots) await page.screenshot({ path: `${screenshots}/${name}.png` });
}

export const send = async (page, text) => {
  await page.fill("#input", text);
  await page.press("#input", "Enter");
};
export const lastAnswer = (page) => page.locator("article.assistant").last();
export const settled = async (page) => {
  await page.waitForSelector("#send:visible");
  await page.waitForSelector('article.assistant[aria-busy="true"]', { state: "detached" });
};
export const say = async (page, text) => {
  await send(page, text);
  await settled(page);
};
export const textOf = (page) => lastAnswer(page).locator("> .markdown").innerText();
export const settle = async (page, name, value) => {
  await page.click("#open-settings");
  const field = page.locator(`#settings-form [name="${name}"]`);
  if (typeof value === "boolean") await field.setChecked(value);
  else if (await field.evaluate((node) => node.tagName === "SELECT")) await field.selectOption(value);
  else await field.fill(value);
  await page.click('#settings-form button:has-text("Done")');
};

// The bodies of the chat requests that a page makes from now on.
export function watchBodies(page) {
  const bodies = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/v1/chat/completions")) bodies.push(request.postDataJSON());
  });
  return bodies;
}
