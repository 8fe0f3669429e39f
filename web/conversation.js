// A conversation is a tree: editing a message or asking again adds a sibling, so nothing is lost.
// Pure; store.js keeps conversations.
//
// Nodes are in the order of their making. By role:
//   user       {content}
//   assistant  {reasoning, content, toolCalls, finishReason, usage, timing, request, error, stopped}
//   tool       {results: [{id, name, content}]}: one for each call of the parent

const kTitleLength = 48;

// crypto.randomUUID exists in secure contexts only.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation() {
  return { id: newId(), title: "", updated: Date.now(), leaf: null, nodes: [] };
}

export function addNode(conversation, parent, fields) {
  const node = { id: newId(), parent: parent?.id ?? null, ...fields };
  conversation.nodes.push(node);
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.content);
  return node;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length <= kTitleLength ? line : line.slice(0, kTitleLength - 1).trimEnd() + "…";
}

// Takes a node without children away.
export function dropLeaf(conversation, node) {
  conversation.nodes = conversation.nodes.filter((other) => other !== node);
  if (conversation.leaf === node.id) conversation.leaf = node.parent;
}

export function find(conversation, id) {
  return conversation.nodes.find((node) => node.id === id) ?? null;
}

// From the first message to `last`, by default the chosen leaf.
export function path(conversation, last = find(conversation, conversation.leaf)) {
  const nodes = [];
  for (let node = last; node; node = find(conversation, node.parent)) nodes.unshift(node);
  return nodes;
}

export function siblings(conversation, node) {
  return conversation.nodes.filter((other) => other.parent === node.parent);
}

// Chooses a branch: the newest leaf below `node`.
export function choose(conversation, node) {
  let leaf = node;
  for (let next = node; next; ) {
    leaf = next;
    next = conversation.nodes.findLast((child) => child.parent === leaf.id);
  }
  conversation.leaf = leaf.id;
}

function messagesOf(node) {
  if (node.role === "user") return [{ role: "user", content: node.content }];
  if (node.role === "tool") {
    return node.results.map((r) => ({ role: "tool", tool_call_id: r.id, content: r.content }));
  }
  const message = { role: "assistant", content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  const calls = node.toolCalls.filter((call) => isJson(call.arguments));  // not those cut short
  if (calls.length > 0) {
    message.tool_calls = calls.map((call) => (
      { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return node.content || node.reasoning || calls.length > 0 ? [message] : [];
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// What the API gets for the messages of a path.
export function toMessages(nodes, system) {
  const said = nodes.flatMap(messagesOf);
  return system ? [{ role: "system", content: system }, ...said] : said;
}

const isText = (value) => typeof value === "string";

// The figures of an object and of the objects in it; null if there are none.
function figures(value) {
  if (value === null || typeof value !== "object") return null;
  const entries = Object.entries(value).map(([name, v]) => (
    [name, Number.isFinite(v) ? v : figures(v)]));
  return Object.fromEntries(entries.filter(([, v]) => v !== null));
}

function checkedNode(node, known) {
  if (!isText(node?.id)) throw new Error("a message has no id");
  if (node.parent !== null && !known.has(node.parent)) {
    throw new Error(`message ${node.id} has no parent`);
  }
  if (known.has(node.id)) throw new Error(`message ${node.id} is there twice`);
  known.add(node.id);
  const { id, parent, role } = node;
  if (role === "user" && isText(node.content)) return { id, parent, role, content: node.content };
  if (role === "tool" && Array.isArray(node.results)) {
    const results = node.results.map((r) => (
      { id: String(r.id), name: String(r.name), content: String(r.content) }));
    return { id, parent, role, results };
  }
  if (role === "assistant" && isText(node.reasoning) && isText(node.content) &&
      Array.isArray(node.toolCalls)) {
    const toolCalls = node.toolCalls.map((c) => (
      { id: String(c.id), name: String(c.name), arguments: String(c.arguments) }));
    const { reasoning, content, finishReason = null, request = null, error = null } = node;
    return { id, parent, role, reasoning, content, toolCalls, request,
             stopped: node.stopped === true, finishReason: finishReason && String(finishReason),
             usage: figures(node.usage), timing: figures(node.timing),
             error: error && { message: String(error.message), status: Number(error.status) } };
  }
  throw new Error(`message ${id} has a form that is not known`);
}

// A conversation from a file or from storage that anything may have written to.
export function checked(value) {
  if (!isText(value?.id) || !isText(value.title) || !Array.isArray(value.nodes)) {
    throw new Error("no conversation");
  }
  const known = new Set();
  const nodes = value.nodes.map((node) => checkedNode(node, known));
  const updated = Number.isFinite(value.updated) ? value.updated : 0;
  const leaf = known.has(value.leaf) ? value.leaf : nodes.at(-1)?.id ?? null;
  return { id: value.id, title: value.title, updated, leaf, nodes };
}
