// Writes the scenarios as a script of the scripted engine (docs/scripted-engine.md):
//
//   node tests/e2e/web/script.mjs > script.jsonl

import { kScenarios, piecesOf } from "./scenarios.mjs";

const kLogprob = Math.log(0.6);
const kTop = [[" the", 0.2], [" a", 0.1], [" of", 0.05], [" in", 0.03], [" and", 0.01]]
  .map(([text, p]) => ({ text, logprob: Math.log(p) }));

// Tool calls as the model writes them.
function markupOf(calls) {
  const parameter = ([name, value]) => {
    const isText = typeof value === "string";
    const text = isText ? value : JSON.stringify(value);
    return `<｜DSML｜ parameter name="${name}" string="${isText}">${text}</｜DSML｜ parameter>\n`;
  };
  const invoke = (call) => (
    `<｜DSML｜ invoke name="${call.name}">\n` +
    Object.entries(JSON.parse(call.arguments)).map(parameter).join("") + "</｜DSML｜ invoke>\n");
  return `\n\n<｜DSML｜ calls>\n${calls.map(invoke).join("")}</｜DSML｜ calls>`;
}

function lineOf({ key, reasoning = "", content = "", calls = [], delayMs = 1, failAt }) {
  const before = [...piecesOf(reasoning), "</think>"];
  const after = piecesOf(content + (calls.length > 0 ? markupOf(calls) : ""));
  const pieces = [...before, ...after].map((text) => (
    { text, logprob: kLogprob, top_logprobs: kTop }));
  const line = { key, delay_ms: delayMs, pieces };
  if (failAt !== undefined) {
    line.error = { message: "the script fails here", after: before.length + failAt };
  }
  return line;
}

for (const scenario of kScenarios) console.log(JSON.stringify(lineOf(scenario)));
console.log(JSON.stringify(lineOf({ content: "I have no script for this." })));
