// The list of conversations, and the drawer it becomes on a narrow screen.

import { ask, byId, h, iconButton } from "./dom.js";

export class Sidebar {
  // actions: rename(conversation, title), remove(conversation)
  constructor(actions) {
    this.actions = actions;
    this.list = byId("conversations");
    this.toggle = byId("open-sidebar");
    this.toggle.addEventListener("click", () => this.setOpen(!this.isOpen()));
    byId("scrim").addEventListener("click", () => this.setOpen(false));
    byId("sidebar").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isOpen()) return;
      event.stopPropagation();
      this.setOpen(false);
      this.toggle.focus();
    });
  }

  isOpen() {
    return document.body.classList.contains("drawer-open");
  }

  setOpen(isOpen) {
    document.body.classList.toggle("drawer-open", isOpen);
    this.toggle.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) byId("new-chat").focus();
  }

  show(conversations, current, isRunning) {
    this.list.replaceChildren(...conversations.map((conversation) => {
      const title = conversation.title || "Untitled";
      const pulse = isRunning(conversation) && h("span", { class: "pulse", title: "answering" });
      return h("li", { class: conversation === current ? "current" : null },
        h("a", { href: `#/chat/${conversation.id}`, title,
                 "aria-current": conversation === current ? "page" : null,
                 onclick: () => this.setOpen(false) }, pulse || null, title),
        iconButton("edit", `Rename ${title}`, () => this.rename(conversation)),
        iconButton("trash", `Delete ${title}`, () => this.remove(conversation)));
    }));
  }

  async rename(conversation) {
    const title = await ask("Rename conversation",
                            { field: "Title", value: conversation.title, confirm: "Rename" });
    if (title) this.actions.rename(conversation, title);
  }

  async remove(conversation) {
    const question = `Delete “${conversation.title || "Untitled"}”?`;
    if (await ask(question, { confirm: "Delete" })) this.actions.remove(conversation);
  }
}
