// The same request n times: one run alone, then several at the same time. The server promises the
// same answer, so every byte of the answers and every log-probability is compared.

import { Answer, firstDifference } from "./answer.js";
import { ApiError } from "./api.js";
import { byId, h } from "./dom.js";
import { plural, seconds } from "./format.js";

const now = () => performance.now() / 1000;

export class RepeatDialog {
  constructor(api) {
    this.api = api;
    this.dialog = byId("repeat-dialog");
    this.form = byId("repeat-form");
    this.rows = byId("repeat-rows");
    this.verdict = byId("repeat-verdict");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run(Number(this.form.elements.runs.value), Number(this.form.elements.together.value));
    });
    byId("repeat-stop").addEventListener("click", () => this.controller.abort());
    this.dialog.addEventListener("close", () => this.controller?.abort());
  }

  // `content` is what the conversation shows for `body`; it may be the beginning of an answer.
  open({ body, content, isComplete }) {
    Object.assign(this, { body, content, isComplete });
    this.rows.replaceChildren();
    this.say("", "");
    byId("repeat-seed").textContent = String(body.seed);
    this.dialog.showModal();
  }

  async run(runs, together) {
    this.controller = new AbortController();
    this.rows.replaceChildren();
    this.setRunning(true);
    this.say("", "Running …");
    try {
      const answers = [await this.runOne(0, "alone", null)];
      while (answers.length < runs) {
        const size = Math.min(together, runs - answers.length);
        const how = size === 1 ? "alone" : `one of ${size}`;
        const group = Array.from({ length: size }, (_, i) => (
          this.runOne(answers.length + i, how, answers[0])));
        answers.push(...await Promise.all(group));
      }
      this.judge(answers);
    } catch (error) {
      this.controller.abort();  // the others of the group
      if (error instanceof ApiError) this.say("bad", `The comparison failed: ${error.message}`);
      else if (error.name === "AbortError") this.say("", "Stopped.");
      else throw error;
    } finally {
      this.setRunning(false);
    }
  }

  async runOne(index, how, reference) {
    const state = h("td", {}, "running …");
    const size = h("td", {});
    const time = h("td", {});
    const run = h("td", {}, String(index + 1));
    this.rows.append(h("tr", {}, run, state, h("td", {}, how), size, time));
    const startedAt = now();
    const answer = new Answer(startedAt);
    for await (const chunk of this.api.chat(this.body, this.controller.signal)) {
      answer.add(chunk, now());
    }
    size.textContent = answer.usage ? plural(answer.usage.completion_tokens, "token") : "";
    time.textContent = seconds(now() - startedAt);
    const isEqual = reference === null || firstDifference(reference, answer) === null;
    state.textContent = reference === null ? "reference" : isEqual ? "✓ identical" : "✗ differs";
    state.className = isEqual ? "good" : "bad";
    return answer;
  }

  judge(answers) {
    const [reference] = answers;
    const index = answers.findIndex((answer) => firstDifference(reference, answer) !== null);
    const isShown = this.isComplete ? reference.content === this.content
      : reference.content.startsWith(this.content);
    const shown = isShown ? "" : " The answer in the conversation is another one.";
    if (index < 0) {
      const size = new TextEncoder().encode(reference.reasoning + reference.content).length;
      const logprobs = reference.tokens.length > 0 ? ", log-probabilities included" : "";
      this.say(isShown ? "good" : "bad", `All ${answers.length} answers are byte-identical ` +
        `(${plural(size, "byte")} of text${logprobs}).${shown}`);
      return;
    }
    const { part, at, expected, found } = firstDifference(reference, answers[index]);
    this.say("bad", `Run ${index + 1} differs from run 1 in its ${part}, at character ${at + 1}: ` +
      `${JSON.stringify(found)} instead of ${JSON.stringify(expected)}.${shown}`);
  }

  say(kind, text) {
    this.verdict.textContent = text;
    this.verdict.className = kind;
  }

  setRunning(isRunning) {
    byId("repeat-start").hidden = isRunning;
    byId("repeat-stop").hidden = !isRunning;
    for (const field of this.form.querySelectorAll("input")) field.disabled = isRunning;
  }
}
