#include "chat/request_parser.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "chat/json_node.h"
#include "chat/wire_text.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;
using Node = JsonNode;

// The placeholder stands for a picture and is counted, so text must not contain it.
Result<std::string> read_text(const Node& node) {
  ASSIGN_OR_RETURN(std::string text, read_string(node));
  if (text.find(wire::kImage) != std::string::npos)
    return refuse_reason(node, "text contains the image placeholder");
  return text;
}

Result<Part> read_part(const Node& node) {
  RETURN_IF_ERROR(expect_object(node));
  const Node type = node.at("type");
  if (type.is(Kind::kString) && type.value->text == "text") {
    const Node text_node = node.at("text");
    if (!text_node.is(Kind::kString)) return refuse(text_node, "a string");
    ASSIGN_OR_RETURN(std::string text, read_text(text_node));
    return Part{Part::Kind::kText, std::move(text)};
  }
  if (type.is(Kind::kString) && type.value->text == "image_url") {
    Node source = node.at("image_url");
    RETURN_IF_ERROR(refuse_repeated(source));
    if (source.is(Kind::kObject)) source = source.at("url");
    if (!source.is(Kind::kString) || source.value->text.empty())
      return refuse(source, "the source of the image");
    return Part{Part::Kind::kImage, source.value->text};
  }
  return refuse(type, "\"text\" or \"image_url\"");
}

Result<std::vector<Part>> read_content(const Node& node) {
  std::vector<Part> parts;
  if (!node.is(Kind::kArray)) {
    if (node.given() && !node.is(Kind::kString)) return refuse(node, "a string or an array");
    ASSIGN_OR_RETURN(std::string text, read_text(node));
    parts.push_back({Part::Kind::kText, std::move(text)});
    return parts;
  }
  for (size_t i = 0; i < node.value->items.size(); ++i) {
    ASSIGN_OR_RETURN(Part part, read_part(node.at(i)));
    parts.push_back(std::move(part));
  }
  return parts;
}

struct Namespace {
  std::string name;
  std::string description;
};

// `namespace` stands beside `function` or inside it; beside wins.
Result<Namespace> read_namespace(const Node& entry) {
  Node node = entry.at("namespace");
  if (!node.given()) node = entry.at("function").at("namespace");
  RETURN_IF_ERROR(refuse_repeated(node));
  Namespace result;
  const Node name = node.is(Kind::kObject) ? node.at("name") : node;
  ASSIGN_OR_RETURN(result.name, read_string(name));
  if (result.name.find("::") != std::string::npos)
    return refuse(name, "a namespace without \"::\"");
  if (node.is(Kind::kObject)) {
    if (result.name.empty()) return refuse(name, "the name of the namespace");
    ASSIGN_OR_RETURN(result.description, read_string(node.at("description")));
  }
  return result;
}

// The name of a tool or a call, with its namespace.
Result<std::string> read_full_name(const Node& entry, const std::string& space) {
  RETURN_IF_ERROR(expect_object(entry));
  const Node function = entry.at("function");
  if (!function.is(Kind::kObject)) return refuse(function, "an object");
  // Of a tool it is the schema, so only what is read here must be unambiguous.
  for (const char* key : {"name", "namespace", "arguments"}) {
    const Node field = function.at(key);
    if (field.value != nullptr && field.value->is_repeated)
      return refuse_reason(field, "found twice, expected once");
  }
  const Node node = function.at("name");
  if (!node.is(Kind::kString) || node.value->text.empty()) return refuse(node, "a name");
  const std::string& name = node.value->text;
  const size_t separator = name.find("::");
  if (separator == std::string::npos) return space.empty() ? name : format(space, "::", name);
  const std::string prefix = name.substr(0, separator);
  const std::string bare = name.substr(separator + 2);
  if (prefix.empty() || bare.empty() || bare.find("::") != std::string::npos)
    return refuse(node, "NAME or NAMESPACE::NAME");
  if (!space.empty() && space != prefix)
    return refuse_reason(node, format("its namespace \"", prefix,
                                      "\" differs from the given namespace \"", space, '"'));
  return name;
}

Status read_type(const Node& entry) {
  ASSIGN_OR_RETURN(const std::string type, read_string(entry.at("type"), "function"));
  if (type != "function") return refuse(entry.at("type"), "\"function\"");
  return {};
}

Result<Tool> read_tool(const Node& entry) {
  RETURN_IF_ERROR(expect_object(entry));
  RETURN_IF_ERROR(read_type(entry));
  ASSIGN_OR_RETURN(const Namespace space, read_namespace(entry));
  Tool tool;
  ASSIGN_OR_RETURN(tool.name, read_full_name(entry, space.name));

  const Node function = entry.at("function");
  const Node parameters = function.at("parameters");
  if (parameters.given() && !parameters.is(Kind::kObject)) return refuse(parameters, "an object");
  ASSIGN_OR_RETURN(const std::string description, read_string(function.at("description")));

  // Every key stays as it came, except those that the namespace changes.
  JsonValue schema = *function.value;
  const auto index_of = [&](std::string_view key) {
    return size_t(std::find(schema.keys.begin(), schema.keys.end(), key) - schema.keys.begin());
  };
  schema.items[index_of("name")].text = tool.name;
  if (const size_t i = index_of("namespace"); i < schema.keys.size()) {
    schema.keys.erase(schema.keys.begin() + ptrdiff_t(i));
    schema.items.erase(schema.items.begin() + ptrdiff_t(i));
  }
  if (!space.description.empty()) {
    const size_t i = index_of("description");
    if (i == schema.keys.size()) {
      schema.keys.push_back("description");
      schema.items.emplace_back();
    }
    schema.items[i].kind = Kind::kString;
    schema.items[i].text = format(space.description, '\n', description);
  }
  ASSIGN_OR_RETURN(tool.schema, read_json({&schema, function.path}));
  return tool;
}

Result<std::vector<Tool>> read_tools(const Node& node) {
  std::vector<Tool> tools;
  ASSIGN_OR_RETURN(const std::vector<Node> entries, read_list(node));
  for (const Node& entry : entries) {
    ASSIGN_OR_RETURN(Tool tool, read_tool(entry));
    tools.push_back(std::move(tool));
  }
  return tools;
}

Result<Argument> read_argument(std::string_view key, const JsonValue& value) {
  Argument argument{std::string(key), value.text, value.is(Kind::kString)};
  if (!argument.is_text) {
    argument.value.clear();
    RETURN_IF_ERROR(write_json(value, argument.value));
  }
  return argument;
}

// `value` is the object, or its JSON text, or that text encoded once more.
Result<std::vector<Argument>> read_arguments(const JsonValue& value, const JsonLimits& limits) {
  JsonValue decoded;
  const JsonValue* object = &value;
  for (int level = 0; level < 2 && object->is(Kind::kString); ++level) {
    Result<JsonValue> next = parse_json(object->text, limits, JsonSyntax::kPython);
    if (!next.has_value() && next.error().code == Code::kExhausted) return next.error();
    if (!next.has_value()) break;
    decoded = std::move(next.value());
    object = &decoded;
  }
  std::vector<Argument> arguments;
  if (!object->is(Kind::kObject)) {
    ASSIGN_OR_RETURN(Argument argument, read_argument("arguments", value));
    arguments.push_back(std::move(argument));
    return arguments;
  }
  for (size_t i = 0; i < object->keys.size(); ++i) {
    ASSIGN_OR_RETURN(Argument argument, read_argument(object->keys[i], object->items[i]));
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

Result<ToolCall> read_tool_call(const Node& entry, const JsonLimits& limits) {
  RETURN_IF_ERROR(expect_object(entry));
  RETURN_IF_ERROR(read_type(entry));
  ToolCall call;
  ASSIGN_OR_RETURN(call.id, read_string(entry.at("id")));
  ASSIGN_OR_RETURN(const Namespace space, read_namespace(entry));
  ASSIGN_OR_RETURN(call.name, read_full_name(entry, space.name));
  const Node node = entry.at("function").at("arguments");
  if (node.value == nullptr) return refuse(node, "the arguments");
  Result<std::vector<Argument>> arguments = read_arguments(*node.value, limits);
  if (!arguments.has_value())
    return Error{arguments.error().code, format(node.path, ": ", arguments.error().message)};
  call.arguments = std::move(arguments.value());
  return call;
}

Result<Role> read_role(const Node& node) {
  struct RoleName {
    std::string_view name;
    Role role;
  };
  constexpr RoleName kRoles[] = {
      {"system", Role::kSystem}, {"developer", Role::kSystem},
      {"user", Role::kUser},     {"assistant", Role::kAssistant},
      {"tool", Role::kTool},     {"latest_reminder", Role::kLatestReminder},
  };
  if (node.is(Kind::kString)) {
    for (const RoleName& known : kRoles)
      if (node.value->text == known.name) return known.role;
  }
  return refuse(node, "system, developer, user, assistant, tool or latest_reminder");
}

Result<Message> read_message(const Node& node, const JsonLimits& limits) {
  RETURN_IF_ERROR(expect_object(node));
  Message message;
  ASSIGN_OR_RETURN(message.role, read_role(node.at("role")));
  ASSIGN_OR_RETURN(message.content, read_content(node.at("content")));
  ASSIGN_OR_RETURN(message.task, read_string(node.at("task")));
  ASSIGN_OR_RETURN(message.tools, read_tools(node.at("tools")));
  if (const Node format_node = node.at("response_format"); format_node.given()) {
    ASSIGN_OR_RETURN(message.response_format, read_json(format_node));
  }
  if (message.role == Role::kTool) {
    ASSIGN_OR_RETURN(message.tool_call_id, read_string(node.at("tool_call_id")));
  }
  if (message.role == Role::kAssistant) {
    const Node reasoning = node.at("reasoning_content");
    ASSIGN_OR_RETURN(message.reasoning,
                     read_text(reasoning.given() ? reasoning : node.at("reasoning")));
    ASSIGN_OR_RETURN(const std::vector<Node> calls, read_list(node.at("tool_calls")));
    for (const Node& entry : calls) {
      ASSIGN_OR_RETURN(ToolCall call, read_tool_call(entry, limits));
      message.tool_calls.push_back(std::move(call));
    }
  }
  return message;
}

Status read_messages(const Node& node, const JsonLimits& limits, ChatRequest& request) {
  if (!node.is(Kind::kArray) || node.value->items.empty())
    return refuse(node, "a non-empty array");
  const size_t count = node.value->items.size();
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(Message message, read_message(node.at(i), limits));
    const Node prefix_node = node.at(i).at("prefix");
    ASSIGN_OR_RETURN(const bool is_prefix, read_bool(prefix_node, false));
    if (is_prefix && i + 1 < count)
      return refuse_reason(prefix_node, "only the last message can be continued");
    request.continue_final_message |= is_prefix;
    request.messages.push_back(std::move(message));
  }
  return {};
}

Status read_thinking(const Node& root, const ChatParseOptions& options, ChatRequest& request) {
  const Node thinking = root.at("thinking");
  RETURN_IF_ERROR(refuse_repeated(thinking));
  if (thinking.is(Kind::kObject)) {
    const Node type = thinking.at("type");
    ASSIGN_OR_RETURN(const std::string name, read_string(type));
    if (name != "enabled" && name != "disabled") return refuse(type, "enabled or disabled");
    request.thinking = name == "enabled";
  } else {
    ASSIGN_OR_RETURN(request.thinking, read_bool(thinking, true));
  }

  const Node effort = root.at("reasoning_effort");
  ASSIGN_OR_RETURN(const std::optional<int> level, read_effort(effort, options));
  if (level) {
    request.reasoning_effort = *level;
  } else {
    request.thinking = false;  // wins over `thinking`
  }
  return {};
}

Status read_tool_choice(const Node& node, ChatRequest& request) {
  if (!node.given()) return {};
  if (node.is(Kind::kObject)) {
    RETURN_IF_ERROR(read_type(node));
    ASSIGN_OR_RETURN(const Namespace space, read_namespace(node));
    ASSIGN_OR_RETURN(const std::string name, read_full_name(node, space.name));
    const bool is_known = std::any_of(request.tools.begin(), request.tools.end(),
                                      [&](const Tool& tool) { return tool.name == name; });
    if (!is_known) return refuse(node.at("function").at("name"), "the name of one of the tools");
    request.tool_choice = ToolChoice::kRequired;
    request.chosen_tool = name;
    return {};
  }
  const std::string_view name = node.is(Kind::kString) ? node.value->text : std::string_view();
  if (name == "none") {
    request.tool_choice = ToolChoice::kNone;
  } else if (name == "required") {
    if (request.tools.empty()) return refuse_reason(node, "\"required\" needs tools");
    request.tool_choice = ToolChoice::kRequired;
  } else if (name != "auto") {
    return refuse(node, R"(none, auto, required or {"type": "function", "function": {"name"}})");
  }
  return {};
}

Status read_response_format(const Node& node, ChatRequest& request) {
  if (!node.given()) return {};
  RETURN_IF_ERROR(refuse_repeated(node));
  const Node type = node.at("type");
  const std::string_view name = type.is(Kind::kString) ? type.value->text : std::string_view();
  if (name == "text") return {};
  if (name == "json_object") {
    request.response_format = R"({"type": "json_object"})";
    return {};
  }
  if (name != "json_schema") return refuse(type, "text, json_object or json_schema");
  RETURN_IF_ERROR(refuse_repeated(node.at("json_schema")));
  const Node schema = node.at("json_schema").at("schema");
  if (!schema.is(Kind::kObject)) return refuse(schema, "an object");
  ASSIGN_OR_RETURN(request.response_format, read_json(schema));
  return {};
}

}  // namespace

std::vector<EffortLevel> default_effort_levels() {
  return {{"minimal", 50}, {"low", 50}, {"medium", 75}, {"high", 75},
          {"xhigh", 75},   {"max", 100}, {"ultra", 100}};
}

Result<std::optional<int>> read_effort(const JsonNode& effort, const ChatParseOptions& options) {
  if (effort.is(Kind::kNumber) && effort.value->is_integer()) {
    const Result<std::optional<int>> value = read_number<int>(effort);
    if (!value.has_value() || *value.value() < 1 || 100 < *value.value()) {
      return refuse(effort, "1 to 100");
    }
    return value;
  }
  if (effort.given() && !effort.is(Kind::kString))
    return refuse(effort, "a name or an integer from 1 to 100");
  ASSIGN_OR_RETURN(const std::string name, read_string(effort, options.default_effort));
  if (name == "none") return std::optional<int>();
  std::string names = "none";
  for (const EffortLevel& level : options.efforts) {
    if (level.name == name) return std::optional(level.effort);
    names += ", " + level.name;
  }
  return refuse(effort, names + " or an integer from 1 to 100");
}

Result<ChatRequest> parse_chat_request(std::string_view json, const ChatParseOptions& options) {
  ASSIGN_OR_RETURN(const JsonValue request, parse_json(json, options.limits));
  return parse_chat_request(request, options);
}

Result<ChatRequest> parse_chat_request(const JsonValue& json, const ChatParseOptions& options) {
  const Node root{&json, ""};
  RETURN_IF_ERROR(expect_object(root));
  ChatRequest request;
  RETURN_IF_ERROR(read_thinking(root, options, request));
  ASSIGN_OR_RETURN(request.tools, read_tools(root.at("tools")));
  RETURN_IF_ERROR(read_tool_choice(root.at("tool_choice"), request));
  RETURN_IF_ERROR(read_response_format(root.at("response_format"), request));
  ASSIGN_OR_RETURN(request.drop_thinking, read_bool(root.at("drop_thinking"), true));

  const Node header = root.at("add_generation_prompt");
  const Node continues = root.at("continue_final_message");
  ASSIGN_OR_RETURN(request.add_generation_prompt, read_bool(header, true));
  ASSIGN_OR_RETURN(request.continue_final_message, read_bool(continues, false));
  RETURN_IF_ERROR(read_messages(root.at("messages"), options.limits, request));
  if (request.continue_final_message) {
    if (request.messages.back().role != Role::kAssistant)
      return refuse_reason(continues, "needs an assistant message at the end of messages");
    if (header.given() && request.add_generation_prompt)
      return refuse_reason(header, "true contradicts the continuation of the last message");
  }
  const Message& first = request.messages.front();
  if (first.role == Role::kSystem) {
    if (!request.tools.empty() && !first.tools.empty())
      return refuse_reason(root.at("tools"), "given here and in messages[0].tools");
    if (request.response_format && first.response_format)
      return refuse_reason(root.at("response_format"),
                           "given here and in messages[0].response_format");
  }
  return request;
}

Result<std::vector<Argument>> parse_tool_arguments(std::string_view text,
                                                   const JsonLimits& limits) {
  JsonValue value;
  value.kind = Kind::kString;
  value.text = text;
  return read_arguments(value, limits);
}

}  // namespace millrace
