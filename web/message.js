// Views of messages. A view is made once for a node and follows it with update().

import { copyButton, h, icon, iconButton } from "./dom.js";
import { count, plural, prettyJson, rate, seconds } from "./format.js";
import { MarkdownView } from "./markdown_view.js";

// ‹ 2 / 3 › between the siblings of a node.
class Branches {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.root = h("span", { class: "branches" });
  }

  update() {
    const siblings = this.actions.siblings(this.node);
    const at = siblings.indexOf(this.node);
    this.root.hidden = siblings.length < 2;
    if (this.root.hidden) return;
    const step = (name, label, to) => iconButton(name, label,
      () => this.actions.choose(siblings[to]), { disabled: !(to in siblings) });
    this.root.replaceChildren(step("left", "Version before", at - 1),
                              h("span", {}, `${at + 1} / ${siblings.length}`),
                              step("right", "Version after", at + 1));
  }
}

export class UserView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.branches = new Branches(node, actions);
    this.edit = iconButton("edit", "Edit message", () => this.startEdit());
    this.text = h("div", { class: "bubble" }, node.content);
    this.tools = h("div", { class: "message-tools" }, this.branches.root,
                   copyButton("Copy message", () => node.content), this.edit);
    this.root = h("article", { class: "user", "aria-label": "You" }, this.text, this.tools);
  }

  update({ isBusy }) {
    this.edit.disabled = isBusy;
    this.branches.update();
  }

  startEdit() {
    const area = h("textarea", { "aria-label": "Edit message", rows: "3", required: true });
    area.value = this.node.content;
    const finish = () => {
      this.root.replaceChildren(this.text, this.tools);
      this.edit.focus();
    };
    const form = h("form", {
      class: "edit",
      onsubmit: (event) => {
        event.preventDefault();
        finish();
        this.actions.edit(this.node, area.value);
      },
      onkeydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();  // it is this form that ends, not an answer
          finish();
        }
        submitOnEnter(event);
      },
    }, area, h("div", { class: "buttons" },
      h("button", { type: "button", onclick: finish }, "Cancel"),
      h("button", { class: "primary" }, "Send")));
    this.root.replaceChildren(form);
    area.focus();
  }
}

// Enter sends the form around a text area and Shift+Enter starts a line; while an input method
// composes, Enter is its own.
export function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (event.target.tagName !== "TEXTAREA") return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

export class AssistantView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.branches = new Branches(node, actions);
    this.thought = new MarkdownView();
    this.summary = h("summary", {});
    this.thinking = h("details", { class: "thinking", hidden: true }, this.summary,
                      this.thought.root);
    // A folded text is not worth building; it is made when it is opened.
    this.thinking.addEventListener("toggle", () => this.updateThought());
    this.content = new MarkdownView();
    this.calls = h("div", { class: "calls" });
    this.waiting = h("p", { class: "waiting" }, h("span", { class: "pulse" }),
                     "Waiting for the first token");
    this.problem = h("div", { class: "problem", role: "alert", hidden: true });
    this.figures = h("p", { class: "figures" });
    this.copy = copyButton("Copy answer", () => node.content);
    this.retry = iconButton("retry", "Ask again", () => actions.retry(node));
    this.tokens = iconButton("tokens", "Tokens and probabilities", () => actions.tokens(node));
    this.repeat = iconButton("repeat", "Same answer, n runs", () => actions.repeat(node));
    this.tools = h("div", { class: "message-tools" }, this.branches.root, this.copy, this.retry,
                   this.tokens, this.repeat);
    this.root = h("article", { class: "assistant", "aria-label": "Answer" }, this.thinking,
                  this.content.root, this.calls, this.waiting, this.problem, this.figures,
                  this.tools);
    this.isRunning = false;
  }

  update({ isRunning, isBusy }) {
    const { node } = this;
    this.isRunning = isRunning;
    const isEmpty = !node.reasoning && !node.content && node.toolCalls.length === 0;
    this.root.setAttribute("aria-busy", String(isRunning));
    this.waiting.hidden = !isRunning || !isEmpty;
    this.updateThinking();
    this.content.update(node.content, isRunning);
    this.updateCalls();
    this.updateProblem();
    this.figures.textContent = figuresOf(node, isRunning);
    this.tools.hidden = isRunning;
    this.copy.hidden = !node.content;
    this.tokens.hidden = this.repeat.hidden = node.error !== null || isEmpty || !node.request;
    this.retry.hidden = node.error !== null;  // it has a button of its own
    this.retry.disabled = isBusy;
    this.branches.update();
  }

  isThinking() {
    return this.isRunning && !this.node.content && this.node.toolCalls.length === 0;
  }

  updateThinking() {
    this.thinking.hidden = !this.node.reasoning;
    const time = this.node.timing?.thinking;
    const forTime = Number.isFinite(time) ? ` for ${seconds(time)}` : "";
    this.summary.textContent = this.isThinking() ? `Thinking${forTime} …` : `Thought${forTime}`;
    this.thinking.classList.toggle("active", this.isThinking());
    this.updateThought();
  }

  updateThought() {
    if (this.thinking.open) this.thought.update(this.node.reasoning, this.isThinking());
  }

  updateCalls() {
    this.node.toolCalls.forEach((call, i) => {
      const card = this.calls.children[i] ?? this.calls.appendChild(
        h("section", { class: "call", "aria-label": "Tool call" },
          h("h3", {}, icon("tool"), h("span", {})),
          h("pre", { tabindex: "0", "aria-label": "Arguments" })));
      card.querySelector("span").textContent = call.name;
      card.querySelector("pre").textContent = prettyJson(call.arguments);
    });
  }

  updateProblem() {
    const { error } = this.node;
    this.problem.hidden = error === null;
    if (error === null || this.problem.hasChildNodes()) return;
    const { status } = error;
    const title = status === 0 ? "The server is away" : status === 401 ? "The server wants a key"
      : `The server ${status < 500 ? "refused" : "failed"} (${status})`;
    const act = status === 401
      ? h("button", { type: "button", onclick: () => this.actions.key(this.node) }, "Enter the key")
      : h("button", { type: "button", onclick: () => this.actions.retry(this.node) }, "Try again");
    this.problem.append(h("strong", {}, title), h("p", {}, error.message), act);
  }
}

const kEndings = {
  length: "cut at the limit of tokens",
  abort: "ended by the server",
  repetition: "ended because it repeated itself",
};

function figuresOf({ usage, timing, stopped, finishReason }, isRunning) {
  const said = [];
  if (!isRunning && stopped) said.push("stopped");
  if (!isRunning && kEndings[finishReason]) said.push(kEndings[finishReason]);
  if (usage?.completion_tokens) {
    const thought = usage.completion_tokens_details?.reasoning_tokens;
    said.push(plural(usage.completion_tokens, "token") +
              (thought ? ` (${count(thought)} of thinking)` : ""));
  }
  if (timing?.tokensPerSecond) said.push(`${rate(timing.tokensPerSecond)} tokens/s`);
  if (Number.isFinite(timing?.firstToken)) said.push(`first after ${seconds(timing.firstToken)}`);
  if (usage?.prompt_tokens) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    said.push(`prompt ${count(usage.prompt_tokens)} (${count(cached)} cached)`);
  }
  return said.join(" · ");
}

export class ToolView {
  constructor(node, actions) {
    this.node = node;
    this.branches = new Branches(node, actions);
    this.edit = iconButton("edit", "Edit results", () => actions.editResults(node));
    this.root = h("article", { class: "tool", "aria-label": "Results of tools" },
      node.results.map((result) => h("section", { class: "result" },
        h("h3", {}, `Result of ${result.name}`), h("pre", { tabindex: "0" }, result.content))),
      h("div", { class: "message-tools" }, this.branches.root, this.edit));
  }

  update({ isBusy }) {
    this.edit.disabled = isBusy;
    this.branches.update();
  }
}

// Asks the person for the results of an answer's tool calls.
export function resultsForm(node, given, send) {
  const areas = node.toolCalls.map((call, i) => {
    const area = h("textarea", { rows: "2", required: true, "data-call": call.id });
    area.value = given[i]?.content ?? "";
    return area;
  });
  return h("form", {
    class: "results",
    onkeydown: submitOnEnter,
    onsubmit: (event) => {
      event.preventDefault();
      send(node.toolCalls.map(({ id, name }, i) => ({ id, name, content: areas[i].value })));
    },
  },
  node.toolCalls.map((call, i) => h("label", {}, `Result of ${call.name}`, areas[i])),
  h("div", { class: "buttons" }, h("button", { class: "primary" }, "Send results")));
}

export function viewOf(node, actions) {
  const View = { user: UserView, assistant: AssistantView, tool: ToolView }[node.role];
  return new View(node, actions);
}
