// Markdown of answers: the part that models write, as a tree. Pure; markdown_view.js makes nodes.
//
// An answer is shown while it streams, so most of what is parsed is cut somewhere. With `open` the
// end of the text is taken as what it will most likely become (a marker without its partner reaches
// to the end, a lone marker waits for its line), so that what is on the screen only grows.
//
// Every loop is bounded by the text and nesting by kMaxDepth: text comes from outside.

const kMaxDepth = 12;
const kMaxLabel = 1000;

const kFence = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const kRule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( *)([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const kTableRule = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
// A last line that may still turn into the start of a block, a rule or the end of a fence.
const kUndecided = /^[ \t]*(?:[-*+_=>]+|\d{1,9}[.)]?|#{1,6}|`+|~+)[ \t]*$/;

// Blocks: {type: "paragraph", text, open} | heading (level, text, open) | code (language, text) |
// list (ordered, start, items: [blocks]) | quote (blocks) | rule |
// table (align, header: [cell], rows: [[cell]]) with cells {text, open}
export function parseBlocks(text, open = false) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  if (open && kUndecided.test(lines.at(-1))) lines.pop();
  return blocksOf(lines, open, 0);
}

function blocksOf(lines, open, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      ++at;
      continue;
    }
    const [block, next] = blockAt(lines, at, open, depth);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

const isBlank = (line) => line.trim() === "";

function blockAt(lines, at, open, depth) {
  const line = lines[at];
  if (kFence.test(line)) return codeAt(lines, at, open);
  if (kRule.test(line)) return [{ type: "rule" }, at + 1];
  const heading = kHeading.exec(line);
  if (heading) {
    const [, marks, text = ""] = heading;
    const isLast = at === lines.length - 1;
    return [{ type: "heading", level: marks.length, text, open: open && isLast }, at + 1];
  }
  if (depth < kMaxDepth) {
    if (kQuote.test(line)) return quoteAt(lines, at, open, depth);
    if (kItem.test(line)) return listAt(lines, at, open, depth);
  }
  if (isTableAt(lines, at, open)) return tableAt(lines, at, open);
  return paragraphAt(lines, at, open, depth);
}

// Whether a line ends the paragraph above it.
function interrupts(lines, at, open, depth) {
  const line = lines[at];
  if (isBlank(line) || kFence.test(line) || kRule.test(line) || kHeading.test(line)) return true;
  if (isTableAt(lines, at, open)) return true;
  if (depth >= kMaxDepth) return false;
  if (kQuote.test(line)) return true;
  const item = kItem.exec(line);
  return item !== null && item[1].length < 4 && item[3] !== "" && !/^(?!1[.)])\d/.test(item[2]);
}

function paragraphAt(lines, at, open, depth) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, open, depth)) ++end;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return [{ type: "paragraph", text, open: open && end === lines.length }, end];
}

function codeAt(lines, at, open) {
  const [, fence, info] = kFence.exec(lines[at]);
  const indent = lines[at].search(/\S/);
  const closing = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) ++end;
  const inside = lines.slice(at + 1, end);
  const text = inside.map((line) => line.slice(Math.min(indent, leadingSpaces(line)))).join("\n");
  const isNamed = !open || at < lines.length - 1;  // else the name may be half of one
  return [{ type: "code", language: isNamed ? info.trim().split(/\s/)[0] : "", text }, end + 1];
}

const leadingSpaces = (line) => line.length - line.trimStart().length;

function quoteAt(lines, at, open, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length; ++end) {
    if (kQuote.test(lines[end])) inside.push(lines[end].replace(kQuote, ""));
    else if (isBlank(inside.at(-1)) || interrupts(lines, end, open, depth)) break;
    else inside.push(lines[end]);  // the rest of a paragraph whose writer left the mark out
  }
  const blocks = blocksOf(inside, open && end === lines.length, depth + 1);
  return [{ type: "quote", blocks }, end];
}

function listAt(lines, at, open, depth) {
  const first = kItem.exec(lines[at])[2];
  const kind = first.at(-1);  // of bullets the bullet, of numbers what follows them
  const ordered = /\d/.test(first);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = kItem.exec(lines[end]);
    if (!item || item[2].at(-1) !== kind || kRule.test(lines[end])) break;
    const [inside, next] = itemAt(lines, end, item, open, depth);
    items.push(inside);
    end = next;
  }
  const blocks = items.map((inside, i) => (
    blocksOf(inside, open && end === lines.length && i === items.length - 1, depth + 1)));
  const start = ordered ? parseInt(first, 10) : null;
  return [{ type: "list", ordered, start, items: blocks }, end];
}

// The lines of one item without their indent, and where the next begins.
function itemAt(lines, at, [marker, indent, bullet, gap], open, depth) {
  const width = indent.length + bullet.length + (gap.length > 4 || gap === "" ? 1 : gap.length);
  // Writers often indent what belongs to "10. " by less than its width.
  const enough = indent.length + Math.min(2, width - indent.length);
  const inside = [lines[at].slice(marker.length)];
  let end = at + 1;
  for (; end < lines.length; ++end) {
    const line = lines[end];
    const spaces = leadingSpaces(line);
    if (isBlank(line)) inside.push("");
    else if (spaces >= enough) inside.push(line.slice(Math.min(spaces, width)));
    else if (kItem.test(line) || inside.at(-1) === "") break;
    else if (interrupts(lines, end, open, depth)) break;
    else inside.push(line);
  }
  return [inside, end];
}

function isTableAt(lines, at, open) {
  const line = lines[at];
  if (!line.includes("|")) return false;
  const rule = lines[at + 1];
  if (rule !== undefined && kTableRule.test(rule)) {
    return cellsOf(line).length === cellsOf(rule).length ||
           (open && at + 2 === lines.length && line.trimStart().startsWith("|"));
  }
  if (!open || !line.trimStart().startsWith("|")) return false;
  return rule === undefined || (at + 2 === lines.length && /^[ \t|:-]*$/.test(rule));
}

function cellsOf(line) {
  const inside = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function tableAt(lines, at, open) {
  const header = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1] ?? "").map((cell) => (
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
  let end = Math.min(at + 2, lines.length);
  while (end < lines.length && lines[end].includes("|")) ++end;
  const rows = lines.slice(at + 2, end).map((line) => cellsOf(line).slice(0, header.length));
  const isOpen = open && end === lines.length;
  const last = rows.length > 0 ? rows.length - 1 : -1;
  const cells = (row, index) => row.map((text, column) => (
    { text, open: isOpen && index === last && column === row.length - 1 }));
  return [{ type: "table", align, header: cells(header, -1), rows: rows.map(cells) }, end];
}

// Inline: {type: "text", text} | code (text) | strong, emphasis, strike (children) |
// link (href, children) | break
export function parseInline(text, open = false) {
  return new InlineParser(text, open).parse(0, text.length, { depth: 0, inLink: false });
}

const kPunctuation = /[!-/:-@[-`{-~]/;
const kUrl = /https?:\/\/[^\s<>]+/iy;
const kAngleUrl = /<(https?:\/\/[^\s<>]+)>/iy;
const kTarget = new RegExp(
  String.raw`\(\s*(<[^<>\n]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)` +
  String.raw`(?:\s+"[^"]*"|\s+'[^']*')?\s*\)`, "y");
const isWord = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);
const isWeb = (url) => /^https?:\/\/./i.test(url);

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

class InlineParser {
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.missing = new Set();  // what is known to have no partner up to a given end
  }

  // The nodes of [at, end).
  parse(at, end, context) {
    const nodes = [];
    const put = (text) => {
      if (nodes.at(-1)?.type === "text") nodes.at(-1).text += text;
      else nodes.push({ type: "text", text });
    };
    while (at < end) {
      const [node, next] = this.nodeAt(at, end, context) ?? [this.text[at], at + 1];
      if (typeof node === "string") put(node);
      else if (Array.isArray(node)) nodes.push(...node);
      else nodes.push(node);
      at = next;
    }
    return nodes;
  }

  // [what stands at `at`, where it ends], or null where a character stands for itself. What is
  // text comes as a string, what has lost its marker as an array.
  nodeAt(at, end, context) {
    const c = this.text[at];
    if (c === "\n") return [{ type: "break" }, at + 1];
    if (c === "\\") return this.escapeAt(at, end);
    if (c === "`") return this.codeAt(at, end);
    if (c === "*" || c === "_" || c === "~") return this.emphasisAt(at, end, context);
    if (context.inLink) return null;
    if (c === "[") return this.linkAt(at, at, end, context);
    if (c === "!" && this.text[at + 1] === "[") return this.linkAt(at, at + 1, end, context);
    if (c === "<") return this.angleUrlAt(at, end);
    if ((c === "h" || c === "H") && !isWord(this.text[at - 1])) return this.urlAt(at, end);
    return null;
  }

  reachesOpenEnd(end) {
    return this.open && end === this.text.length;
  }

  escapeAt(at, end) {
    const next = this.text[at + 1];
    if (at + 1 >= end) return this.reachesOpenEnd(end) ? [[], end] : null;
    if (next === "\n") return [{ type: "break" }, at + 2];
    return kPunctuation.test(next) ? [next, at + 2] : null;
  }

  runAt(at, end) {
    let last = at;
    while (last < end && this.text[last] === this.text[at]) ++last;
    return last - at;
  }

  // Where the run of backticks that ends the code at `at` begins, or -1.
  codeEnd(at, end) {
    const length = this.runAt(at, end);
    const wanted = `${"`".repeat(length)}${end}`;
    if (this.missing.has(wanted)) return -1;
    for (let i = at + length; i < end; ) {
      if (this.text[i] !== "`") {
        ++i;
        continue;
      }
      const run = this.runAt(i, end);
      if (run === length) return i;
      i += run;
    }
    this.missing.add(wanted);
    return -1;
  }

  codeAt(at, end) {
    const length = this.runAt(at, end);
    const close = this.codeEnd(at, end);
    if (close >= 0) {
      const inside = this.text.slice(at + length, close).replaceAll("\n", " ");
      const isPadded = /^ .*[^ ].* $/.test(inside) || /^ [^ ] $/.test(inside);
      return [{ type: "code", text: isPadded ? inside.slice(1, -1) : inside }, close + length];
    }
    if (!this.reachesOpenEnd(end)) return ["`".repeat(length), at + length];
    const inside = this.text.slice(at + length, end).replace(/`+$/, "").replaceAll("\n", " ");
    return [inside === "" ? [] : { type: "code", text: inside.trimStart() }, end];
  }

  emphasisAt(at, end, context) {
    const c = this.text[at];
    const length = this.runAt(at, end);
    const inside = at + length;
    if (inside === end && this.reachesOpenEnd(end)) return [[], end];
    const canOpen = inside < end && !isSpace(this.text[inside]) &&
                    (c !== "_" || !isWord(this.text[at - 1]));
    const isMarker = c === "~" ? length === 2 : length <= 3;
    if (!canOpen || !isMarker || context.depth >= kMaxDepth) return [c.repeat(length), inside];
    let close = this.emphasisEnd(c, length, inside, end);
    let next = close + length;
    if (close < 0) {
      if (!this.reachesOpenEnd(end)) return [c.repeat(length), inside];
      close = next = end;
    }
    const children = this.parse(inside, close, { ...context, depth: context.depth + 1 });
    if (c === "~") return [{ type: "strike", children }, next];
    const wrapped = length === 1 ? { type: "emphasis", children } : { type: "strong", children };
    return [length === 3 ? { type: "emphasis", children: [wrapped] } : wrapped, next];
  }

  // Where the marker that ends an emphasis begins, or -1. Of three marks the outer ones close.
  emphasisEnd(c, length, at, end) {
    const wanted = `${c}${length},${end}`;
    if (this.missing.has(wanted)) return -1;
    for (let i = at; i < end; ) {
      const here = this.text[i];
      if (here === "\\") {
        i += 2;
      } else if (here === "`") {
        const close = this.codeEnd(i, end);
        i = (close >= 0 ? close : i) + this.runAt(i, end);
      } else if (here === c) {
        const run = this.runAt(i, end);
        const canClose = !isSpace(this.text[i - 1]) && (c !== "_" || !isWord(this.text[i + run]));
        if (canClose && (run === length || run === 3)) return i + run - length;
        i += run;
      } else {
        ++i;
      }
    }
    this.missing.add(wanted);
    return -1;
  }

  // `at` is where the text is taken up again if this is no link, `bracket` where its label begins.
  linkAt(at, bracket, end, context) {
    const label = bracket + 1;
    const close = this.labelEnd(label, end);
    const asText = () => this.parse(label, close < 0 ? end : close, { ...context, inLink: true });
    if (close < 0) {
      const mayClose = this.reachesOpenEnd(end) && end - label < kMaxLabel;
      return mayClose ? [asText(), end] : null;
    }
    if (close + 1 === end && this.reachesOpenEnd(end)) return [asText(), end];
    if (this.text[close + 1] !== "(") return null;
    const target = matchAt(kTarget, this.text, close + 1);
    if (!target || target.index + target[0].length > end) {
      const mayClose = this.reachesOpenEnd(end) && !this.text.slice(close, end).includes("\n");
      return mayClose ? [asText(), end] : null;
    }
    const next = close + 1 + target[0].length;
    const href = target[1].replace(/^<|>$/g, "");
    if (!isWeb(href)) return [this.text.slice(at, next), next];  // shown as it was written
    return [{ type: "link", href, children: asText() }, next];
  }

  labelEnd(at, end) {
    const last = Math.min(end, at + kMaxLabel);
    let depth = 0;
    for (let i = at; i < last; ++i) {
      const c = this.text[i];
      if (c === "\\") ++i;
      else if (c === "[") ++depth;
      else if (c === "]" && depth-- === 0) return i;
    }
    return -1;
  }

  angleUrlAt(at, end) {
    const match = matchAt(kAngleUrl, this.text, at);
    if (!match || at + match[0].length > end) return null;
    const children = [{ type: "text", text: match[1] }];
    return [{ type: "link", href: match[1], children }, at + match[0].length];
  }

  urlAt(at, end) {
    const match = matchAt(kUrl, this.text, at);
    if (!match) return null;
    let url = match[0].slice(0, end - at);
    if (this.open && at + url.length === this.text.length) return [url, at + url.length];
    url = url.replace(/[.,;:!?'"*_~`\]]+$/, "");
    if (url.endsWith(")") && !url.includes("(")) url = url.replace(/\)[.,;:!?'"*_~`)\]]*$/, "");
    if (!isWeb(url)) return null;
    return [{ type: "link", href: url, children: [{ type: "text", text: url }] }, at + url.length];
  }
}
