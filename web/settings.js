// What the person chose, kept in this browser, and the fields of a request that follow from it.

import { byId } from "./dom.js";

const kKey = "millrace.settings";
const kDefaults = {
  model: "", system: "", thinking: true, effort: "", temperature: "", topP: "", maxTokens: "",
  seed: "", tools: "", alternatives: "5", recordTokens: false, apiKey: "", theme: "system",
};

const kExampleTools = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];

export class Settings extends EventTarget {
  values = { ...kDefaults };

  constructor() {
    super();
    try {
      const kept = JSON.parse(localStorage.getItem(kKey)) ?? {};
      for (const name of Object.keys(kDefaults)) {
        if (typeof kept[name] === typeof kDefaults[name]) this.values[name] = kept[name];
      }
    } catch {
      // Something else wrote there; the defaults do.
    }
  }

  set(name, value) {
    this.values[name] = value;
    localStorage.setItem(kKey, JSON.stringify(this.values));
    this.dispatchEvent(new CustomEvent("change", { detail: name }));
  }

  // Of a request, without its messages. The seed is always there, so that every answer can be had
  // again.
  requestFields() {
    const { model, thinking, effort, temperature, topP, maxTokens, seed, tools } = this.values;
    const fields = { thinking: { type: thinking ? "enabled" : "disabled" } };
    if (model) fields.model = model;
    if (thinking && effort) fields.reasoning_effort = effort;
    if (temperature) fields.temperature = Number(temperature);
    if (topP) fields.top_p = Number(topP);
    if (maxTokens) fields.max_completion_tokens = Number(maxTokens);
    fields.seed = seed ? Number(seed) : crypto.getRandomValues(new Uint32Array(1))[0];
    if (tools.trim()) fields.tools = JSON.parse(tools);
    if (this.values.recordTokens) Object.assign(fields, this.tokenFields());
    return fields;
  }

  // What makes the server send the probabilities of tokens.
  tokenFields() {
    return { logprobs: true, top_logprobs: Number(this.values.alternatives || 0) };
  }
}

// What is wrong with a list of tools; "" if nothing is.
export function toolsError(text) {
  if (!text.trim()) return "";
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
  if (!Array.isArray(tools)) return "A list is expected: [{\"type\": \"function\", …}]";
  const wrong = tools.findIndex((t) => t?.type !== "function" || !t.function?.name);
  return wrong < 0 ? "" : `Tool ${wrong + 1} needs "type": "function" and a function with a name`;
}

// Connects the form of the settings dialog, whose fields have the names of the values. What is
// valid is kept at once; what is not says so and changes nothing.
export function connectForm(settings) {
  const form = byId("settings-form");
  const fields = Object.keys(kDefaults).map((name) => form.elements[name]);
  const check = (field) => {
    if (field.name === "tools") field.setCustomValidity(toolsError(field.value));
    const note = byId(`${field.name}-error`);
    if (note) note.textContent = field.validationMessage;
    field.setAttribute("aria-invalid", String(!field.validity.valid));
    return field.validity.valid;
  };
  const show = () => {
    for (const field of fields) {
      const value = settings.values[field.name];
      if (field.type === "checkbox") field.checked = value;
      else if (document.activeElement !== field) field.value = value;
      check(field);
    }
    form.elements.effort.disabled = !settings.values.thinking;
  };
  form.addEventListener("input", ({ target }) => {
    if (!(target.name in kDefaults) || !check(target)) return;
    settings.set(target.name, target.type === "checkbox" ? target.checked : target.value);
  });
  byId("example-tools").addEventListener("click", () => {
    settings.set("tools", JSON.stringify(kExampleTools, null, 2));
  });
  byId("reset-settings").addEventListener("click", () => {
    for (const [name, value] of Object.entries(kDefaults)) settings.set(name, value);
  });
  settings.addEventListener("change", show);
  show();
}

// Fills the choice of models with what the server has.
export function showModels(settings, models) {
  const select = byId("settings-form").elements.model;
  const ids = models.map((model) => model.id);
  select.replaceChildren(new Option(`${ids[0] ?? "none"} (the server's first)`, ""),
                         ...ids.map((id) => new Option(id, id)));
  const { model } = settings.values;
  if (model && !ids.includes(model)) settings.set("model", "");
  select.value = settings.values.model;
}
