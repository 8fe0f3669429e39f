#include "config_file.h"

#include <algorithm>
#include <optional>

#include "base/format.h"
#include "chat/json_node.h"
#include "sys/file.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

constexpr std::string_view kConfig = "--config";
constexpr size_t kMaxBytes = size_t(1) << 20;

bool gives(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return argument == flag || argument.starts_with(flag + "=");
  });
}

Status add_flag(const std::string& flag, const JsonNode& node, std::vector<std::string>& flags) {
  switch (node.value->kind) {
    case Kind::kBool:
      if (node.value->boolean) flags.push_back(flag);
      return {};
    case Kind::kNumber:
    case Kind::kString:
      flags.push_back(flag + "=" + node.value->text);
      return {};
    case Kind::kArray:
      for (size_t i = 0; i < node.value->items.size(); ++i) {
        if (node.at(i).is(Kind::kArray)) return refuse(node.at(i), "a string, a number or a truth");
        RETURN_IF_ERROR(add_flag(flag, node.at(i), flags));
      }
      return {};
    default:
      return refuse(node, "a string, a number, a truth or an array of those");
  }
}

Result<std::vector<std::string>> read_flags(const std::string& file,
                                            const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxBytes));
  const Result<JsonValue> json = parse_json(text);
  if (!json.has_value()) return json.error();
  const JsonNode root{&json.value(), ""};
  RETURN_IF_ERROR(expect_object(root));
  RETURN_IF_ERROR(refuse_repeated(root));
  std::vector<std::string> flags;
  for (const std::string& name : root.value->keys) {
    std::string flag = "--" + name;
    std::replace(flag.begin() + 2, flag.end(), '_', '-');
    if (!gives(arguments, flag)) RETURN_IF_ERROR(add_flag(flag, root.at(name), flags));
  }
  return flags;
}

}  // namespace

Result<std::vector<std::string>> expand_config(const std::vector<std::string>& arguments) {
  // Elsewhere --config names a model's config.json.
  if (arguments.empty() || arguments[0] != "serve") return arguments;
  std::vector<std::string> expanded;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::optional<std::string> file;
    if (arguments[i] == kConfig) {
      if (i + 1 == arguments.size()) return Error{Code::kInvalidArgument, "--config: expected a file"};
      file = arguments[++i];
    } else if (arguments[i].starts_with(std::string(kConfig) + "=")) {
      file = arguments[i].substr(kConfig.size() + 1);
    }
    if (!file) {
      expanded.push_back(arguments[i]);
      continue;
    }
    Result<std::vector<std::string>> flags = read_flags(*file, arguments);
    if (!flags.has_value()) {
      return Error{flags.error().code, format(*file, ": ", flags.error().message)};
    }
    expanded.insert(expanded.end(), flags.value().begin(), flags.value().end());
  }
  return expanded;
}

}  // namespace millrace
