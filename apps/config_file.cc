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

bool gives(const std::vector<std::string>& arguments, const FlagInfo& flag) {
  const auto is_it = [&](const std::string& argument) {
    return std::any_of(flag.names.begin(), flag.names.end(), [&](const std::string& name) {
      // "--port=1", "--port" "1"; "-t1", "-t" "1"
      const bool is_long = name.starts_with("--");
      return argument == name || argument.starts_with(is_long ? name + "=" : name);
    });
  };
  return std::any_of(arguments.begin(), arguments.end(), is_it);
}

using InfoOf = std::function<std::optional<FlagInfo>(const std::string&)>;

Status add_flag(const std::string& flag, bool is_switch, const JsonNode& node,
                std::vector<std::string>& flags) {
  if (is_switch) {
    if (node.value->kind != Kind::kBool) return refuse(node, "true or false");
    if (node.value->boolean) flags.push_back(flag);
    return {};
  }
  switch (node.value->kind) {
    case Kind::kNumber:
    case Kind::kString:
      if (node.value->text.empty()) return refuse(node, "at least one character");
      if (node.value->text.find('\0') != std::string::npos) {  // as the command line cannot have it
        return refuse(node, "no character U+0000");
      }
      flags.push_back(flag + "=" + node.value->text);
      return {};
    case Kind::kArray:
      if (node.value->items.empty()) return refuse(node, "at least one value");
      for (size_t i = 0; i < node.value->items.size(); ++i) {
        if (node.at(i).is(Kind::kArray)) return refuse(node.at(i), "a string or a number");
        RETURN_IF_ERROR(add_flag(flag, is_switch, node.at(i), flags));
      }
      return {};
    default:
      return refuse(node, "a string, a number or an array of those");
  }
}

Status read_flags(const std::string& text, const std::vector<std::string>& arguments,
                  const InfoOf& info_of, std::vector<std::string>& flags) {
  const Result<JsonValue> json = parse_json(text);
  if (!json.has_value()) return json.error();
  if (json.value().kind != Kind::kObject) {
    return Error{Code::kInvalidArgument, "expected an object whose keys are flags"};
  }
  const JsonNode root{&json.value(), ""};
  RETURN_IF_ERROR(refuse_repeated(root));
  for (const std::string& name : root.value->keys) {
    std::string flag = "--" + name;
    std::replace(flag.begin() + 2, flag.end(), '_', '-');
    const std::optional<FlagInfo> info = flag == kConfig ? std::nullopt : info_of(flag);
    if (!info) {
      return Error{Code::kInvalidArgument,
                   format(flag, ": no such flag; millrace serve --help lists them, "
                                "docs/from-vllm.md those of vLLM")};
    }
    if (gives(arguments, *info)) continue;
    RETURN_IF_ERROR(add_flag(info->names.front(), info->is_switch, root.at(name), flags));
  }
  return {};
}

}  // namespace

Result<ExpandedArguments> expand_config(const std::vector<std::string>& arguments,
                                        const InfoOf& info_of) {
  // Elsewhere --config names a model's config.json.
  if (arguments.empty() || arguments[0] != "serve") return ExpandedArguments{arguments, {}, {}};
  ExpandedArguments expanded;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::optional<std::string> file;
    if (arguments[i] == kConfig) {
      file = i + 1 < arguments.size() ? arguments[++i] : "";
    } else if (arguments[i].starts_with(std::string(kConfig) + "=")) {
      file = arguments[i].substr(kConfig.size() + 1);
    }
    if (!file) {
      expanded.arguments.push_back(arguments[i]);
      continue;
    }
    if (file->empty()) {
      return Error{Code::kInvalidArgument, "--config: found nothing, expected a file"};
    }
    if (*file == "-") {
      return Error{Code::kInvalidArgument,
                   "--config: found \"-\", expected a file; one of that name is ./-"};
    }
    ASSIGN_OR_RETURN(const std::string text, read_file(*file, kMaxBytes));
    std::vector<std::string> flags;
    const Status status = read_flags(text, arguments, info_of, flags);
    if (!status.ok()) {
      return Error{status.error().code, format(*file, ": ", status.error().message)};
    }
    expanded.files.push_back(*file);
    for (std::string& flag : flags) {
      expanded.file_of.emplace(flag.substr(0, flag.find('=')), *file);
      expanded.arguments.push_back(std::move(flag));
    }
  }
  return expanded;
}

}  // namespace millrace
