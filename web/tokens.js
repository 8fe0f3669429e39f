// The token view: each token of an answer coloured by its probability, with what else it could
// have been.

import { Answer } from "./answer.js";
import { ApiError } from "./api.js";
import { byId, h } from "./dom.js";
import { percent, plural } from "./format.js";

const kNothing = -9999;  // how the API writes the logarithm of 0

export function probability(logprob) {
  return logprob <= kNothing ? 0 : Math.exp(logprob);
}

// A token as a person can read it: white space visible, bytes that are no text in hexadecimal.
export function tokenText({ token, bytes }) {
  if (bytes && token.includes("\ufffd")) {
    return `‹${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}›`;
  }
  return token;
}

function quoted(token) {
  return JSON.stringify(tokenText(token));
}

export class TokenDialog {
  // request() of open(): {body, text} of the answer; the body asks for its tokens.
  constructor(api) {
    this.api = api;
    this.dialog = byId("tokens-dialog");
    this.status = byId("tokens-status");
    this.flow = byId("tokens-flow");
    this.detail = byId("token-detail");
    this.dialog.addEventListener("close", () => this.controller?.abort());
    this.flow.addEventListener("keydown", (event) => this.move(event));
    for (const kind of ["pointerover", "focusin", "click"]) {
      this.flow.addEventListener(kind, ({ target }) => {
        if (target.dataset.index) this.select(Number(target.dataset.index), kind !== "pointerover");
      });
    }
  }

  // Shows `recorded` tokens, or has the server give the answer again with them: the same request
  // has the same answer, and if not, the dialog says so.
  async open({ recorded, body, content, isComplete }) {
    this.tokens = [];
    this.nodes = [];
    this.part = null;
    this.flow.replaceChildren();
    this.detail.replaceChildren(h("p", {}, "Point at a token, or use the arrow keys."));
    this.dialog.showModal();
    if (recorded) {
      this.add(recorded);
      this.status.textContent = this.summary();
      return;
    }
    this.status.textContent = "Asking for the same answer with its probabilities …";
    this.controller = new AbortController();
    const answer = new Answer(0);
    try {
      for await (const chunk of this.api.chat(body, this.controller.signal)) {
        answer.add(chunk, 0);
        this.add(answer.tokens.slice(this.tokens.length));
      }
      const isSame = isComplete ? answer.content === content : answer.content.startsWith(content);
      this.status.textContent = this.summary() +
        (isSame ? "" : " The answer is not the one above: the server or its model has changed.");
    } catch (error) {
      if (error instanceof ApiError) this.status.textContent = error.message;
      else if (error.name !== "AbortError") throw error;
    }
  }

  summary() {
    if (this.tokens.length === 0) return "The server sent no tokens.";
    const sum = this.tokens.reduce((total, token) => total + Math.max(kNothing, token.logprob), 0);
    const perplexity = Math.exp(-sum / this.tokens.length);
    return `${plural(this.tokens.length, "token")}, perplexity ${perplexity.toFixed(2)}.`;
  }

  add(tokens) {
    for (const token of tokens) {
      if (token.part !== this.part?.name) {
        const list = h("div", { class: "token-flow", role: "listbox",
                                "aria-orientation": "horizontal",
                                "aria-label": `Tokens of ${token.part}` });
        this.part = { name: token.part, list };
        this.flow.append(h("h3", {}, token.part), list);
      }
      const index = this.tokens.length;
      const p = probability(token.logprob);
      // A line end is shown, and ends the line as well.
      const text = tokenText(token).replaceAll("\n", "↵\n");
      const node = h("span", { class: "token", role: "option", "data-index": String(index),
                               "aria-selected": "false", tabindex: index === 0 ? "0" : "-1",
                               "aria-label": `${quoted(token)}, ${percent(p)}` }, text);
      node.style.setProperty("--doubt", String(1 - p));
      this.tokens.push(token);
      this.nodes.push(node);
      this.part.list.append(node);
    }
  }

  // One stop of the tab key for all tokens; arrows go from one to the next.
  move(event) {
    const at = Number(event.target.dataset.index);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1,
                 Home: 0, End: this.nodes.length - 1 }[event.key];
    if (to === undefined || !(to in this.nodes)) return;
    event.preventDefault();
    this.nodes[to].focus();
  }

  select(index, isTabStop) {
    const before = this.flow.querySelector('[aria-selected="true"]');
    before?.setAttribute("aria-selected", "false");
    this.nodes[index].setAttribute("aria-selected", "true");
    if (isTabStop) {
      this.flow.querySelector('[tabindex="0"]').tabIndex = -1;
      this.nodes[index].tabIndex = 0;
    }
    this.showDetail(this.tokens[index], index);
  }

  showDetail(token, index) {
    const isTop = token.top.some((other) => sameToken(other, token));
    const rows = isTop ? token.top : [...token.top, token];
    const rest = Math.max(0, 1 - rows.reduce((sum, row) => sum + probability(row.logprob), 0));
    const row = (name, p, isChosen) => {
      const bar = h("span", { class: "bar" });
      bar.style.setProperty("--share", String(p));
      return h("tr", { class: isChosen ? "chosen" : null },
        h("th", { scope: "row" }, name, isChosen ? h("span", { class: "tag" }, "chosen") : null),
        h("td", {}, percent(p)), h("td", {}, bar));
    };
    this.detail.replaceChildren(
      h("p", {}, h("strong", {}, quoted(token)), ` · token ${index + 1} of ${this.tokens.length}` +
        ` · log-probability ${token.logprob.toFixed(4)}`),
      h("table", {}, h("tbody", {},
        rows.map((r) => row(quoted(r), probability(r.logprob), sameToken(r, token))),
        row("everything else", rest, false))));
  }
}

// Different tokens can have the same text, but not the same bytes.
function sameToken(a, b) {
  return a.token === b.token && String(a.bytes) === String(b.bytes);
}
