// The chat: one conversation on the screen, any number of them being answered.

import { Answer } from "./answer.js";
import { ApiError } from "./api.js";
import { addNode, choose, dropLeaf, find, newConversation, path, siblings, toMessages }
  from "./conversation.js";
import { byId, h } from "./dom.js";
import { count } from "./format.js";
import { resultsForm, submitOnEnter, viewOf } from "./message.js";
import { Sidebar } from "./sidebar.js";

const kSaveEvery = 2;  // seconds, of an answer that streams
const kNearEnd = 60;  // pixels: who is this close to the end follows it

const now = () => performance.now() / 1000;

export class Chat {
  running = new Map();  // conversation id -> {node, answer, controller}
  recorded = new Map();  // node id -> tokens; they are large, so they live as long as the page
  views = new Map();  // node id -> view, of the conversation on the screen
  contextLength = null;  // of the model, in tokens
  frame = null;
  announced = 0;  // blocks of the running answer that were read out

  // dialogs: tokens(node), repeat(node); askForKey() resolves to whether there is a new one.
  constructor({ api, store, settings, dialogs, askForKey }) {
    Object.assign(this, { api, store, settings, askForKey });
    this.actions = {
      siblings: (node) => siblings(this.conversation, node),
      choose: (node) => {
        choose(this.conversation, node);
        this.save();
        this.show();
      },
      edit: (node, text) => this.say(find(this.conversation, node.parent), text),
      retry: (node) => this.retry(node),
      key: (node) => this.retryWithKey(node),
      tokens: dialogs.tokens,
      repeat: dialogs.repeat,
      editResults: (node) => this.editResults(node),
    };
    this.sidebar = new Sidebar({
      rename: (conversation, title) => {
        conversation.title = title;
        this.save(conversation);
        this.showList();
      },
      remove: (conversation) => this.remove(conversation),
    });
    this.transcript = byId("transcript");
    this.scroller = byId("scroller");
    this.input = byId("input");
    this.connectComposer();
    this.connectFiles();
    store.onOtherTab(() => {
      if (!this.isBusy()) this.open(this.conversation.id);
    });
    addEventListener("pagehide", () => {
      for (const id of this.running.keys()) store.save(store.conversations.get(id));
    });
    this.conversation = newConversation();
  }

  connectComposer() {
    const composer = byId("composer");
    composer.addEventListener("keydown", submitOnEnter);
    composer.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.input.value;
      if (this.isBusy() || !text.trim()) return;
      this.input.value = "";
      this.say(find(this.conversation, this.conversation.leaf), text);
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("to-end").addEventListener("click", () => this.scrollToEnd());
    this.scroller.addEventListener("scroll", () => this.updateToEnd());
    for (const example of document.querySelectorAll("#welcome button")) {
      example.addEventListener("click", () => {
        this.input.value = example.textContent;
        composer.requestSubmit();
      });
    }
  }

  connectFiles() {
    byId("export").addEventListener("click", () => {
      const blob = new Blob([this.store.exported()], { type: "application/json" });
      const url = URL.createObjectURL(blob);
      h("a", { href: url, download: "millrace-conversations.json" }).click();
      URL.revokeObjectURL(url);
    });
    const file = byId("import-file");
    byId("import").addEventListener("click", () => file.click());
    file.addEventListener("change", async () => {
      try {
        const imported = this.store.import(await file.files[0].text());
        this.notify(`${imported} imported.`);
      } catch (error) {
        this.notify(`Nothing was imported: ${error.message}.`);
      }
      file.value = "";
      this.showList();
    });
  }

  // Shows a conversation; a new one if there is none of that id.
  open(id) {
    this.conversation = this.store.conversations.get(id) ?? newConversation();
    this.views.clear();
    this.show();
    this.scrollToEnd();
  }

  isBusy() {
    return this.running.has(this.conversation.id);
  }

  // Adds what the person says below `parent` and has it answered.
  say(parent, text) {
    const isNew = this.conversation.nodes.length === 0;
    const node = addNode(this.conversation, parent, { role: "user", content: text });
    if (isNew) history.replaceState(null, "", `#/chat/${this.conversation.id}`);
    this.answer(node);
  }

  retry(node) {
    if (this.isBusy()) return;
    const parent = find(this.conversation, node.parent);
    const isLeaf = this.conversation.leaf === node.id;
    const isEmpty = !node.content && !node.reasoning && node.toolCalls.length === 0;
    if (node.error && isEmpty && isLeaf) dropLeaf(this.conversation, node);
    this.answer(parent);
  }

  async retryWithKey(node) {
    if (await this.askForKey()) this.retry(node);
  }

  // The body that leads to the answer `node`.
  bodyFor(conversation, node) {
    const { system, fields } = node.request;
    const before = path(conversation, find(conversation, node.parent));
    return { ...fields, messages: toMessages(before, system), stream: true,
             stream_options: { include_usage: true, continuous_usage_stats: true } };
  }

  async answer(parent) {
    const { conversation } = this;
    const request = { system: this.settings.values.system, fields: this.settings.requestFields() };
    const node = addNode(conversation, parent, {
      role: "assistant", reasoning: "", content: "", toolCalls: [], finishReason: null, usage: null,
      timing: null, request, error: null,
      stopped: true,  // until it ended otherwise: the page may be closed at any time
    });
    const run = { node, answer: new Answer(now()), controller: new AbortController() };
    this.running.set(conversation.id, run);
    this.announced = 0;
    this.announce("Answering");
    this.save(conversation);
    this.show();
    this.scrollToEnd();
    let savedAt = now();
    try {
      const chunks = this.api.chat(this.bodyFor(conversation, node), run.controller.signal);
      for await (const chunk of chunks) {
        run.answer.add(chunk, now());
        copyInto(node, run.answer);
        this.updateSoon(node);
        if (now() - savedAt > kSaveEvery) {
          this.save(conversation);
          savedAt = now();
        }
      }
      node.stopped = false;
    } catch (error) {
      if (error instanceof ApiError) {
        node.stopped = false;
        node.error = { message: error.message, status: error.status };
      } else if (error.name !== "AbortError") {
        throw error;
      }
    } finally {
      copyInto(node, run.answer);
      this.running.delete(conversation.id);
      if (run.answer.tokens.length > 0) this.recorded.set(node.id, run.answer.tokens);
      conversation.updated = Date.now();
      if (this.store.conversations.has(conversation.id)) this.save(conversation);
      this.finish(conversation, node);
    }
    if (node.error?.status === 401 && conversation === this.conversation) {
      await this.retryWithKey(node);
    }
  }

  finish(conversation, node) {
    if (conversation !== this.conversation) return this.showList();
    const followed = this.isAtEnd();
    this.show();
    if (followed) this.scrollToEnd();
    this.announceBlocks(node, true);
    const isAtRest = document.activeElement === document.body;
    if (node.finishReason === "tool_calls") this.transcript.querySelector("textarea")?.focus();
    else if (isAtRest) this.input.focus();
  }

  stop() {
    if (!this.isBusy()) return;
    this.running.get(this.conversation.id).controller.abort();
    this.input.focus();
  }

  remove(conversation) {
    this.running.get(conversation.id)?.controller.abort();
    this.store.remove(conversation);
    if (conversation === this.conversation) location.hash = "#/";
    else this.showList();
  }

  save(conversation = this.conversation) {
    if (this.store.save(conversation)) return;
    this.notify("This browser's storage is full: new messages live in this tab only. " +
                "Export or delete conversations.");
  }

  editResults(node) {
    const calling = find(this.conversation, node.parent);
    this.conversation.leaf = calling.id;
    this.show(node.results);
    this.transcript.querySelector(".results textarea").focus();
  }

  // `given` are results to start from where the form asks for those of tools.
  show(given = []) {
    const nodes = path(this.conversation);
    const last = nodes.at(-1);
    const views = nodes.map((node) => {
      if (!this.views.has(node.id)) this.views.set(node.id, viewOf(node, this.actions));
      return this.views.get(node.id);
    });
    const children = views.map((view) => view.root);
    if (last?.finishReason === "tool_calls" && !this.isBusy()) {
      children.push(resultsForm(last, given, (results) => {
        this.answer(addNode(this.conversation, last, { role: "tool", results }));
      }));
    }
    this.transcript.replaceChildren(...children);
    for (const node of nodes) this.update(node);
    byId("welcome").hidden = nodes.length > 0;
    byId("stop").hidden = !this.isBusy();
    byId("send").hidden = this.isBusy();
    this.showContext(nodes);
    this.showList();
    this.updateToEnd();
  }

  showList() {
    this.sidebar.show(this.store.newestFirst(), this.conversation,
                      (conversation) => this.running.has(conversation.id));
  }

  showContext(nodes) {
    const usage = nodes.findLast((node) => node.usage)?.usage;
    const used = usage ? usage.prompt_tokens + usage.completion_tokens : 0;
    byId("context").textContent = used && this.contextLength
      ? `${count(used)} of ${count(this.contextLength)} tokens of context` : "";
  }

  update(node) {
    const isRunning = this.running.get(this.conversation.id)?.node === node;
    this.views.get(node.id).update({ isRunning, isBusy: this.isBusy() });
  }

  // Many chunks may come between two frames.
  updateSoon(node) {
    if (this.frame !== null) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (!this.views.has(node.id)) return;  // another conversation is on the screen
      const followed = this.isAtEnd();
      this.update(node);
      if (followed) this.scrollToEnd();
      this.updateToEnd();
      this.announceBlocks(node, false);
    });
  }

  // To screen readers an answer comes by blocks: word by word it would drown everything else.
  announceBlocks(node, isEnd) {
    const { content } = this.views.get(node.id);
    const blocks = content.finishedBlocks();
    if (isEnd) blocks.push(content.root.lastElementChild?.textContent ?? "");
    for (const text of blocks.slice(this.announced)) this.announce(text);
    this.announced = blocks.length;
    if (isEnd) this.announce(node.error ? "" : "End of the answer");
  }

  announce(text) {
    const log = byId("announcer");
    log.append(h("p", {}, text));
    while (log.children.length > 20) log.firstElementChild.remove();
  }

  notify(text) {
    byId("notice-text").textContent = text;
    byId("notice").hidden = false;
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < kNearEnd;
  }

  scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  updateToEnd() {
    byId("to-end").hidden = this.isAtEnd();
  }
}

function copyInto(node, answer) {
  const { reasoning, content, toolCalls, finishReason, usage } = answer;
  Object.assign(node, { reasoning, content, toolCalls, finishReason, usage,
                        timing: answer.timing(now()) });
}
