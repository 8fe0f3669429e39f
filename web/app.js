// Puts the page together: routes, keys of the keyboard, the state of the connection.

import { Api, ApiError } from "./api.js";
import { Chat } from "./chat.js";
import { ask, byId } from "./dom.js";
import { EnginePage } from "./engine.js";
import { RepeatDialog } from "./repeat.js";
import { connectForm, Settings, showModels } from "./settings.js";
import { Store } from "./store.js";
import { TokenDialog } from "./tokens.js";

const kRetryMs = 5000;

const settings = new Settings();
const api = new Api(() => settings.values.apiKey);
const tokenDialog = new TokenDialog(api);
const repeatDialog = new RepeatDialog(api);

function applyTheme() {
  document.documentElement.dataset.theme = settings.values.theme;
}
settings.addEventListener("change", applyTheme);
applyTheme();

// One question at a time, whoever asks.
let keyQuestion = null;
function askForKey() {
  keyQuestion ??= ask("This server wants an API key",
                      { field: "API key", type: "password", confirm: "Use this key" })
    .then((key) => {
      keyQuestion = null;
      if (key) {
        settings.set("apiKey", key);
        connect();
      }
      return key !== null;
    });
  return keyQuestion;
}

// What it takes to have the answer `node` again, with its tokens.
function repetition(node) {
  const body = { ...chat.bodyFor(chat.conversation, node), ...settings.tokenFields() };
  // A stopped answer is repeated as far as it came.
  if (node.stopped && node.usage) body.max_completion_tokens = node.usage.completion_tokens;
  return { body, content: node.content, isComplete: !node.stopped,
           recorded: chat.recorded.get(node.id) };
}

const chat = new Chat({
  api, store: new Store(), settings, askForKey,
  dialogs: { tokens: (node) => tokenDialog.open(repetition(node)),
             repeat: (node) => repeatDialog.open(repetition(node)) },
});

const engine = new EnginePage(api, { onKeyNeeded: askForKey, onChange: showConnection });

function showConnection(error) {
  byId("connection").dataset.state = error ? "away" : "ready";
  if (error) byId("connection-text").textContent = error.needsKey ? "key needed" : "server away";
  else byId("connection-text").textContent = modelName;
  byId("away").hidden = !error || error.needsKey;
  if (error) byId("away-text").textContent = error.message;
}

// Asks for the models, and again until the server answers.
let modelName = "";
let retryTimer = null;
async function connect() {
  clearTimeout(retryTimer);
  try {
    const models = await api.models();
    showModels(settings, models);
    modelName = settings.values.model || models[0]?.id || "";
    chat.contextLength = models.find(({ id }) => id === modelName)?.max_model_len ?? null;
    showConnection(null);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showConnection(error);
    if (error.needsKey) await askForKey();
    else retryTimer = setTimeout(connect, kRetryMs);
  }
}
byId("reconnect").addEventListener("click", connect);
settings.addEventListener("change", ({ detail }) => {
  if (detail === "model") connect();
});

// Routes: #/ a new chat, #/chat/ID one of the kept, #/engine.
function route() {
  const isEngine = location.hash === "#/engine";
  byId("chat").hidden = isEngine;
  byId("engine").hidden = !isEngine;
  byId("to-chat").setAttribute("aria-current", isEngine ? "false" : "page");
  byId("to-engine").setAttribute("aria-current", isEngine ? "page" : "false");
  document.title = isEngine ? "Engine – Millrace" : "Millrace";
  engine.setShown(isEngine);
  if (isEngine) return;
  chat.open(/^#\/chat\/(.+)$/.exec(location.hash)?.[1]);
  // Where there is no mouse, the focus would bring up a keyboard over half of the screen.
  if (matchMedia("(hover: hover)").matches) chat.input.focus({ preventScroll: true });
}
addEventListener("hashchange", route);

function newChat() {
  chat.sidebar.setOpen(false);
  if (location.hash === "#/") route();
  else location.hash = "#/";
}
byId("new-chat").addEventListener("click", newChat);

for (const name of ["settings", "help"]) {
  byId(`open-${name}`).addEventListener("click", () => byId(`${name}-dialog`).showModal());
}
for (const button of document.querySelectorAll("dialog .close")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
byId("close-notice").addEventListener("click", () => { byId("notice").hidden = true; });
byId("switch-theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (settings.values.theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  settings.set("theme", isDark ? "light" : "dark");
});

function focusInput() {
  if (byId("chat").hidden) newChat();
  else chat.input.focus();
}

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches?.("input, textarea, select");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") newChat();
  else if (event.key === "Escape" && !byId("chat").hidden) chat.stop();
  else if (event.key === "/" && !isTyping) focusInput();
  else if (event.key === "?" && !isTyping) byId("help-dialog").showModal();
  else return;
  event.preventDefault();
});

connectForm(settings);
route();
connect();
