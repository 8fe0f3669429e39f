#include "chat/strict_parser.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "chat/json.h"
#include "chat/wire_text.h"

namespace millrace {
namespace {

constexpr auto kNone = std::string_view::npos;

Error corrupt(std::string message) { return Error{Code::kCorrupt, std::move(message)}; }

Status check_plain(std::string_view what, std::string_view text) {
  for (const std::string_view token :
       {wire::kBos, wire::kEos, wire::kThink, wire::kEndThink, wire::kDsml}) {
    if (text.find(token) != kNone)
      return corrupt(format(what, ": found control token ", token, " inside the text"));
  }
  return {};
}

// Reads the block of calls from behind its opening tag to the end of the text.
class BlockReader {
 public:
  explicit BlockReader(std::string_view text) : rest_(text) {}

  Result<std::vector<Reply::Call>> read() {
    RETURN_IF_ERROR(newline("the opening tag of the calls"));
    std::vector<Reply::Call> calls;
    while (!accept(wire::kBlockClose)) {
      if (!accept(wire::kInvokeOpen)) return corrupt("calls: expected a call or the closing tag");
      Reply::Call& call = calls.emplace_back();
      RETURN_IF_ERROR(read_call(call));
    }
    accept(wire::kEos);
    if (!rest_.empty()) return corrupt("found text after the tool calls");
    return calls;
  }

 private:
  bool accept(std::string_view literal) {
    if (rest_.substr(0, literal.size()) != literal) return false;
    rest_.remove_prefix(literal.size());
    return true;
  }

  Status newline(std::string_view after) {
    if (accept("\n")) return {};
    return corrupt(format(after, ": expected a newline behind it"));
  }

  Status read_call(Reply::Call& call) {
    constexpr std::string_view kNameEnd = "\">\n";
    const size_t end = rest_.find(kNameEnd);
    if (end == kNone) return corrupt("call: its opening tag does not end");
    call.name = rest_.substr(0, end);
    rest_.remove_prefix(end + kNameEnd.size());
    accept("\n");  // a call without arguments may have an empty line

    std::vector<std::string_view> keys;
    call.arguments = "{";
    while (accept(wire::kParameterOpen)) RETURN_IF_ERROR(read_parameter(call, keys));
    call.arguments += '}';
    if (!accept(wire::kInvokeClose))
      return corrupt(format("call ", call.name, ": expected a parameter or the closing tag"));
    return newline("the closing tag of a call");
  }

  Status read_parameter(Reply::Call& call, std::vector<std::string_view>& keys) {
    const size_t end = rest_.find(wire::kParameterClose);
    if (end == kNone) return corrupt(format("call ", call.name, ": a parameter does not end"));
    const std::string_view parameter = rest_.substr(0, end);
    rest_.remove_prefix(end + wire::kParameterClose.size());
    RETURN_IF_ERROR(newline("the closing tag of a parameter"));

    // The first of both attributes ends the key: a key may look like an attribute, a value too.
    const size_t text_key = parameter.find(wire::kParameterText);
    const size_t json_key = parameter.find(wire::kParameterJson);
    if (text_key == json_key)  // neither was found
      return corrupt(format("call ", call.name, ": a parameter's opening tag is damaged"));
    const bool is_text = text_key < json_key;
    const std::string_view key = parameter.substr(0, std::min(text_key, json_key));
    const std::string_view value = parameter.substr(
        key.size() + (is_text ? wire::kParameterText : wire::kParameterJson).size());
    if (std::find(keys.begin(), keys.end(), key) != keys.end())
      return corrupt(format("call ", call.name, ": parameter ", key, " twice"));

    if (!keys.empty()) call.arguments += ", ";
    append_json_string(key, call.arguments);
    call.arguments += ": ";
    if (is_text) {
      append_json_string(value, call.arguments);
    } else {
      call.arguments += value;
    }
    keys.push_back(key);
    return {};
  }

  std::string_view rest_;
};

}  // namespace

Result<Reply> parse_reply_strictly(std::string_view text, bool thinking) {
  // The tag without its end: whatever follows must be that end.
  const std::string block_start =
      "\n\n" + std::string(wire::kBlockOpen.substr(0, wire::kBlockOpen.size() - 1));
  Reply reply;
  std::string_view rest = text;
  if (thinking) {
    const size_t end = rest.find(wire::kEndThink);
    if (end == kNone || rest.find(block_start) < end) return corrupt("no end of reasoning");
    reply.reasoning = rest.substr(0, end);
    rest.remove_prefix(end + wire::kEndThink.size());
  }
  const size_t block = rest.find(block_start);
  const size_t eos = rest.find(wire::kEos);
  if (block == kNone && eos == kNone) return corrupt("no end of sentence");
  reply.content = rest.substr(0, std::min(block, eos));
  RETURN_IF_ERROR(check_plain("reasoning", reply.reasoning));
  RETURN_IF_ERROR(check_plain("content", reply.content));
  if (eos < block) {
    if (eos + wire::kEos.size() != rest.size()) return corrupt("found text after the end");
    return reply;
  }
  rest.remove_prefix(block + block_start.size());
  if (rest.substr(0, 1) != ">") return corrupt("the opening tag of the calls does not end");
  rest.remove_prefix(1);
  ASSIGN_OR_RETURN(reply.tool_calls, BlockReader(rest).read());
  return reply;
}

}  // namespace millrace
