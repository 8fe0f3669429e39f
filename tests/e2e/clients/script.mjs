// What the scripted engine answers in these tests (docs/scripted-engine.md), by a name in brackets in the prompt:
//
//   node tests/e2e/clients/script.mjs > script.jsonl
//
// Text comes in pieces of three bytes, so that characters and stop strings are cut everywhere.

import { pathToFileURL } from "node:url";

const kPieceBytes = 3;

export const kUnicode = "Zoë 🙂 👩‍👩‍👧 日本語 עברית Straße é ﷽ 🇫🇷.";

export const kReplies = {
  plain: { content: "Hello, this is a plain answer." },
  thinks: { reasoning: "First I count: 1, 2, 3. Then I answer.", content: "It is three." },
  unicode: { reasoning: `Thinking of ${kUnicode}`, content: `Here: ${kUnicode}` },
  broken: { base64: ["YWJj", "8J8=", "ZGVm"], content: "abc\ufffddef" },  // an emoji's first half
  silent: { content: "" },
  "at once": { content: "Said without a thought.", thinks: false },
  stops: { reasoning: "END is only a word while I think.", content: "One, two, END and more." },
  weather: {
    reasoning: "The tool knows the weather.",
    calls: [{ name: "get_weather", arguments: { city: "Paris" } }],
  },
  "it is 18 degrees in Paris": { reasoning: "Good.", content: "It is 18 degrees." },
  several: {
    reasoning: "Two calls at once.",
    content: "I look that up.",
    calls: [
      { name: "get_weather", arguments: { city: "Zoë \"日本\"\n🙂", days: [1, 2.5, null], deep: { a: {} } } },
      { name: "get_time", arguments: { zone: "Europe/Paris" } },
      { name: "get_nothing", arguments: {} },
    ],
  },
  cutcall: {
    reasoning: "A call that does not end.",
    raw: '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n' +
         '<｜DSML｜ parameter name="city" string="true">A very long name of a ci',
    finish_reason: "length",
    call: { name: "get_weather", begin: '{"city": "A very long name of a ci' },
  },
  // Damaged markup, and what is made of it: nothing is closed or invented.
  "wrong: no name": {
    raw: "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke>\nmore</｜DSML｜ calls> and more", said: { content: "" } },
  "wrong: text between": {
    content: "So:",
    raw: '\n\n<｜DSML｜ calls>\nnow <｜DSML｜ invoke name="f">x<｜DSML｜ parameter name="a" string="true">1' +
         "</｜DSML｜ parameter>y</｜DSML｜ invoke>z</｜DSML｜ calls>behind",
    said: { content: "So:", calls: [{ name: "f", arguments: '{"a": "1"}' }] } },
  "wrong: no block": {
    raw: '<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke>',
    said: { content: "", calls: [{ name: "f", arguments: "{}" }] } },
  "wrong: never closed": {
    raw: '<｜DSML｜ calls><｜DSML｜ invoke name="f"><｜DSML｜ parameter name="a" string="false">[1, 2',
    said: { content: "", calls: [{ name: "f", arguments: '{"a": [1, 2' }] } },
  "wrong: half a tag": { raw: "a < b, <｜DSML", said: { content: "a < b, <｜DSML" } },
  "wrong: thinks twice": {
    reasoning: "One.</think>Two.", content: "</think>Three.<think>Four.",
    said: { reasoning: "One.", content: "Two.Three.<think>Four." } },
  breaks: { reasoning: "Soon.", content: "It begins well but it does not end well.",
            error: { message: "the script fails here", after: 12 } },
  "fails at once": { content: "never seen", error: { message: "the script fails at once", after: 0 } },
  endless: { content: "tick ", thinks: false, repeat: "forever", delay_ms: 2 },
  slowly: { content: "At last.", first_delay_ms: 1500 },
  choices: [0, 1, 2].map((choice) => (
    { choice, reasoning: `I am number ${choice}.`, content: `Answer ${"x".repeat(choice + 1)}`,
      delay_ms: 1 + choice })),
  likely: {
    content: "Yes.", logprob: -0.25,
    top_logprobs: [{ text: " the", logprob: -0.25 }, { text: " a", logprob: -1.5 }, { text: " of", logprob: -3 }],
  },
};

function markupOf(calls) {
  const parameter = ([name, value]) => {
    const isText = typeof value === "string";
    const text = isText ? value : JSON.stringify(value);
    return `<｜DSML｜ parameter name="${name}" string="${isText}">${text}</｜DSML｜ parameter>\n`;
  };
  const invoke = (call) => (
    `<｜DSML｜ invoke name="${call.name}">\n` +
    Object.entries(call.arguments).map(parameter).join("") + "</｜DSML｜ invoke>\n");
  return `\n\n<｜DSML｜ calls>\n${calls.map(invoke).join("")}</｜DSML｜ calls>`;
}

// Control words stay whole, as the tokens that they are.
function piecesOf(text) {
  return text.split(/(<\/think>|｜DSML｜)/).flatMap((part, i) => {
    if (i % 2 === 1) return [{ text: part }];
    const bytes = Buffer.from(part);
    const pieces = [];
    for (let at = 0; at < bytes.length; at += kPieceBytes) {
      pieces.push({ base64: bytes.subarray(at, at + kPieceBytes).toString("base64") });
    }
    return pieces;
  });
}

function lineOf(key, reply) {
  const { reasoning = "", content = "", calls = [], raw = "", base64, call, logprob, top_logprobs, said,
          thinks = true, ...others } = reply;
  const begin = thinks ? [...piecesOf(reasoning), { text: "</think>" }] : [];
  const rest = base64?.map((piece) => ({ base64: piece })) ??
               piecesOf(content + raw + (calls.length > 0 ? markupOf(calls) : ""));
  const odds = top_logprobs ? { logprob, top_logprobs } : {};
  const pieces = [...begin, ...rest].map((piece) => ({ ...piece, ...odds }));
  return JSON.stringify({ key: `[${key}]`, pieces, ...others });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  for (const [key, replies] of Object.entries(kReplies)) {
    for (const reply of [replies].flat()) console.log(lineOf(key, reply));
  }
}

// What a client reads of a fault: its kind. The reason is for the server's log.
export const kFault = "the engine failed at this request (corrupt)";
