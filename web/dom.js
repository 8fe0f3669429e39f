// DOM nodes from values. Text becomes text nodes and nothing else: this page never parses HTML.

const kSvg = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// h("button", {class: "small", onclick: stop}, "Stop"). Handlers are functions, so that a policy
// against inline scripts holds; a child that is null is left out.
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(kSvg, tag), props, children);
}

// A symbol of the sprite in index.html; decoration, so the button around it needs a label.
export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}

export function iconButton(name, label, onclick, props = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label,
                       onclick, ...props }, icon(name));
}

export function byId(id) {
  return document.getElementById(id);
}

// True once the text is on the clipboard. The modern interface exists in secure contexts only, and
// a server on the local network is reached over plain HTTP.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    const focused = document.activeElement;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

// A button that copies what text() returns and says so for a moment.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? "check" : "x"));
    button.setAttribute("aria-label", done ? "Copied" : "Copying was refused");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

// Asks in a dialog; resolves to the text of the field, to true where there is none, or to null.
export function ask(question, { field = null, type = "text", value = "", confirm = "OK" } = {}) {
  const input = field && h("input", { type, name: "value", autocomplete: "off", required: true });
  if (input) input.value = value;
  const cancelButton = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const confirmButton = h("button", { class: "primary", value: "confirm", autofocus: !input },
                          confirm);
  const form = h("form", { method: "dialog" },
    h("h2", {}, question),
    input && h("label", {}, field, input),
    h("div", { class: "buttons" }, cancelButton, confirmButton));
  const dialog = h("dialog", { class: "small-dialog", "aria-label": question }, form);
  document.body.append(dialog);
  dialog.showModal();
  input?.select();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "confirm" ? (input ? input.value.trim() : true) : null);
  }));
}
