// Conversations in this browser's storage, one entry each. Nothing is kept anywhere else.

import { checked, newId } from "./conversation.js";

const kPrefix = "millrace.conversation.";

export class Store {
  conversations = new Map();  // id -> conversation

  constructor() {
    for (const key of Object.keys(localStorage)) this.read(key);
  }

  // Calls back when another tab changed something.
  onOtherTab(changed) {
    addEventListener("storage", ({ key, newValue }) => {
      if (!key?.startsWith(kPrefix)) return;
      if (newValue === null) this.conversations.delete(key.slice(kPrefix.length));
      else this.read(key);
      changed();
    });
  }

  read(key) {
    if (!key.startsWith(kPrefix)) return;
    try {
      const conversation = checked(JSON.parse(localStorage.getItem(key)));
      this.conversations.set(conversation.id, conversation);
    } catch (error) {
      console.warn(`${key} is left alone: ${error.message}`);
    }
  }

  newestFirst() {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  // False if the storage is full; the conversation lives on in this tab.
  save(conversation) {
    this.conversations.set(conversation.id, conversation);
    try {
      localStorage.setItem(kPrefix + conversation.id, JSON.stringify(conversation));
      return true;
    } catch {
      return false;
    }
  }

  remove(conversation) {
    this.conversations.delete(conversation.id);
    localStorage.removeItem(kPrefix + conversation.id);
  }

  exported() {
    return JSON.stringify({ format: "millrace.conversations", version: 1,
                            conversations: this.newestFirst() }, null, 1);
  }

  // The number of conversations that came in. Either all of a file is taken or nothing, and what
  // is here stays: one whose id is taken gets another.
  import(text) {
    const file = JSON.parse(text);
    if (file?.format !== "millrace.conversations" || file.version !== 1) {
      throw new Error("not a file that this page exported");
    }
    const conversations = file.conversations.map(checked);
    for (const conversation of conversations) {
      if (this.conversations.has(conversation.id)) conversation.id = newId();
      if (!this.save(conversation)) throw new Error("this browser's storage is full");
    }
    return conversations.length;
  }
}
