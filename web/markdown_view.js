// Shows Markdown that grows. Blocks that did not change keep their nodes, and with them selection
// and scroll position; code that grows changes its text only.

import { copyButton, h } from "./dom.js";
import { parseBlocks, parseInline } from "./markdown.js";

export class MarkdownView {
  constructor() {
    this.root = h("div", { class: "markdown" });
    this.shown = [];  // JSON of the block of each child
  }

  update(text, open = false) {
    const blocks = parseBlocks(text, open);
    blocks.forEach((block, i) => {
      const json = JSON.stringify(block);
      if (this.shown[i] === json) return;
      this.shown[i] = json;
      const old = this.root.children[i];
      if (!old) this.root.append(nodeOf(block));
      else if (!growCode(old, block)) old.replaceWith(nodeOf(block));
    });
    this.shown.length = blocks.length;
    while (this.root.children.length > blocks.length) this.root.lastElementChild.remove();
  }

  // The text of each block that will not change any more while text is added.
  finishedBlocks() {
    return Array.from(this.root.children).slice(0, -1).map((node) => node.textContent);
  }
}

function growCode(node, block) {
  if (block.type !== "code" || node.dataset.language !== block.language) return false;
  const code = node.querySelector("code");
  if (block.text.startsWith(code.textContent)) {
    code.firstChild.appendData(block.text.slice(code.textContent.length));
  } else {
    code.textContent = block.text;
  }
  return true;
}

const kBlocks = {
  paragraph: (block) => h("p", {}, inline(block)),
  heading: (block) => h(`h${Math.min(6, block.level + 2)}`, {}, inline(block)),  // below the page's
  rule: () => h("hr"),
  quote: (block) => h("blockquote", {}, block.blocks.map(nodeOf)),
  code: codeNode,
  list: (block) => h(block.ordered ? "ol" : "ul", { start: block.start },
    block.items.map((blocks) => h("li", {}, blocks.map(nodeOf)))),
  table: tableNode,
};

function nodeOf(block) {
  return kBlocks[block.type](block);
}

function codeNode({ language, text }) {
  const code = h("code", {}, text);
  return h("div", { class: "code", "data-language": language },
    h("div", { class: "code-head" }, h("span", {}, language || "code"),
      copyButton("Copy code", () => code.textContent)),
    h("pre", { tabindex: "0", "aria-label": "Code" }, code));
}

function tableNode({ align, header, rows }) {
  const cell = (tag) => (content, column) => (
    h(tag, { class: align[column] === "left" ? null : align[column] }, inline(content)));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {},
      h("thead", {}, h("tr", {}, header.map(cell("th")))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td")))))));
}

function inline({ text, open }) {
  return parseInline(text.trimEnd(), open).map(inlineNode);
}

function inlineNode(node) {
  switch (node.type) {
    case "text": return node.text;
    case "code": return h("code", {}, node.text);
    case "break": return h("br");
    case "strong": return h("strong", {}, node.children.map(inlineNode));
    case "emphasis": return h("em", {}, node.children.map(inlineNode));
    case "strike": return h("s", {}, node.children.map(inlineNode));
    case "link":
      return h("a", { href: node.href, rel: "noopener noreferrer", target: "_blank",
                      title: node.href }, node.children.map(inlineNode));
  }
}
