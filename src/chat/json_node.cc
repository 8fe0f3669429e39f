#include "chat/json_node.h"

#include "base/format.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

std::string describe(const JsonValue* value) {
  if (value == nullptr) return "nothing";
  switch (value->kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return value->boolean ? "true" : "false";
    case Kind::kNumber:
      return "number " + value->text.substr(0, 40);
    case Kind::kString: {
      std::string_view shown = value->text;
      if (shown.size() > 40) {
        shown = shown.substr(0, 40);
        while ((uint8_t(value->text[shown.size()]) & 0xC0) == 0x80) shown.remove_suffix(1);
      }
      std::string out = "string ";
      append_json_string(shown, out);
      return shown.size() < value->text.size() ? out + "..." : out;
    }
    case Kind::kArray:
      return format("an array of ", value->items.size());
    case Kind::kObject:
      return "an object";
  }
  return {};
}

}  // namespace

JsonNode JsonNode::at(std::string_view key) const {
  return {value == nullptr ? nullptr : value->find(key),
          path.empty() ? std::string(key) : format(path, '.', key)};
}

JsonNode JsonNode::at(size_t i) const { return {&value->items[i], format(path, '[', i, ']')}; }

Error refuse(const JsonNode& node, std::string_view expected) {
  return Error{Code::kInvalidArgument, format(node.path.empty() ? "request" : node.path,
                                              ": found ", describe(node.value), ", expected ",
                                              expected)};
}

Error refuse_reason(const JsonNode& node, std::string_view reason) {
  return Error{Code::kInvalidArgument, format(node.path, ": ", reason)};
}

Status refuse_repeated(const JsonNode& object) {
  if (!object.is(Kind::kObject)) return {};
  for (size_t i = 0; i < object.value->items.size(); ++i) {
    if (!object.value->items[i].is_repeated) continue;
    return refuse_reason(object.at(object.value->keys[i]), "found twice, expected once");
  }
  return {};
}

Status expect_object(const JsonNode& node) {
  if (!node.is(Kind::kObject)) return refuse(node, "an object");
  return refuse_repeated(node);
}

Result<std::string> read_string(const JsonNode& node, std::string_view if_absent) {
  if (!node.given()) return std::string(if_absent);
  if (!node.is(Kind::kString)) return refuse(node, "a string");
  return node.value->text;
}

Result<bool> read_bool(const JsonNode& node, bool if_absent) {
  if (!node.given()) return if_absent;
  if (!node.is(Kind::kBool)) return refuse(node, "true or false");
  return node.value->boolean;
}

Result<std::vector<JsonNode>> read_list(const JsonNode& node) {
  std::vector<JsonNode> elements;
  if (!node.given()) return elements;
  if (!node.is(Kind::kArray)) return refuse(node, "an array");
  for (size_t i = 0; i < node.value->items.size(); ++i) elements.push_back(node.at(i));
  return elements;
}

Result<std::string> read_json(const JsonNode& node) {
  std::string out;
  const Status written = write_json(*node.value, out);
  if (!written.ok()) return refuse_reason(node, written.error().message);
  return out;
}

}  // namespace millrace
