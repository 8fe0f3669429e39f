#include "engine/script.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <initializer_list>
#include <set>
#include <utility>

#include "base/format.h"
#include "engine/token_lookup.h"
#include "json/document.h"

namespace millrace {
namespace {

namespace bj = boost::json;

constexpr JsonFileLimits kLineLimits = {.max_bytes = kMaxScriptLineBytes, .max_depth = 8};

Error wrong(const std::string& field, const std::string& found, const std::string& expected) {
  return {Code::kInvalidArgument,
          format(field, field.empty() ? "" : ": ", "found ", found, ", expected ", expected)};
}
Error wrong(const std::string& field, const bj::value* value, const std::string& expected) {
  return wrong(field, describe(value), expected);
}

// ---- Fields of an object. `path` is where it stands: empty for the line, or "pieces[2].".

// An object that has no members but these.
Result<const bj::object*> read_object(const std::string& field, const bj::value& value,
                                      std::initializer_list<std::string_view> known) {
  if (!value.is_object()) return wrong(field, &value, "an object");
  for (const auto& member : value.get_object()) {
    const std::string_view key(member.key().data(), member.key().size());
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    return wrong(field, format("\"", key, "\""), format("one of ", names));
  }
  return &value.get_object();
}

const bj::value* find(const bj::object& object, std::string_view key) {
  return object.if_contains({key.data(), key.size()});
}

Result<std::string> read_string(const std::string& field, const bj::value& value, size_t max_bytes) {
  if (!value.is_string() || value.get_string().empty() || value.get_string().size() > max_bytes) {
    return wrong(field, &value, format("a string of 1 to ", max_bytes, " bytes"));
  }
  return std::string(value.get_string().data(), value.get_string().size());
}

Result<int64_t> read_integer(const std::string& field, const bj::value& value, int64_t least,
                             int64_t most) {
  if (!value.is_int64() || value.get_int64() < least || value.get_int64() > most) {
    return wrong(field, &value, format("an integer from ", least, " to ", most));
  }
  return value.get_int64();
}

Result<double> read_number(const std::string& field, const bj::value& value, double least,
                           double most, const std::string& expected) {
  double number = std::nan("");
  if (value.is_double()) number = value.get_double();
  if (value.is_int64()) number = double(value.get_int64());
  if (!(number >= least && number <= most)) return wrong(field, &value, expected);
  return number;
}

Result<std::optional<int64_t>> read_delay(const bj::object& object, const std::string& path,
                                          std::string_view key) {
  const bj::value* value = find(object, key);
  if (value == nullptr) return std::optional<int64_t>();
  ASSIGN_OR_RETURN(const double ms,
                   read_number(path + std::string(key), *value, 0, kMaxScriptDelayMs,
                               format("milliseconds from 0 to ", int64_t(kMaxScriptDelayMs))));
  return std::optional<int64_t>(std::llround(ms * 1e6));
}

Result<float> read_logprob(const std::string& field, const bj::value* value) {
  constexpr const char* kExpected = "a log-probability from -9999 to 0";
  if (value == nullptr) return wrong(field, value, kExpected);
  ASSIGN_OR_RETURN(const double logprob, read_number(field, *value, -9999, 0, kExpected));
  return float(logprob);
}

Result<int32_t> read_token_id(const std::string& field, const bj::value& value, size_t vocab_size) {
  ASSIGN_OR_RETURN(const int64_t id, read_integer(field, value, 0, int64_t(vocab_size) - 1));
  return int32_t(id);
}

// RFC 4648 with its padding. None: that is not what it is.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  size_t num_pads = 0;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 4; ++k) {
      const char c = text[i + k];
      uint32_t digit = 0;
      if (c >= 'A' && c <= 'Z') {
        digit = uint32_t(c - 'A');
      } else if (c >= 'a' && c <= 'z') {
        digit = uint32_t(c - 'a') + 26;
      } else if (c >= '0' && c <= '9') {
        digit = uint32_t(c - '0') + 52;
      } else if (c == '+' || c == '/') {
        digit = c == '+' ? 62 : 63;
      } else if (c == '=' && i + 4 == text.size() && k >= 2) {
        ++num_pads;
      } else {
        return std::nullopt;
      }
      if (c != '=' && num_pads > 0) return std::nullopt;
      bits = bits << 6 | digit;
    }
    for (int shift : {16, 8, 0}) bytes += char(bits >> shift & 0xff);
    const uint32_t cut_off = num_pads == 0 ? 0 : num_pads == 1 ? bits & 0xff : bits & 0xffff;
    if (cut_off != 0) return std::nullopt;  // two spellings of the same bytes
  }
  bytes.resize(bytes.size() - num_pads);
  return bytes;
}

// ---- A line.

class LineReader {
 public:
  LineReader(const TokenTable& tokens, const TokenLookup& lookup)
      : tokens_(tokens), lookup_(lookup) {}

  Result<ScriptReply> read(std::string_view line) const {
    ASSIGN_OR_RETURN(const bj::value value, parse_json_file(line, kLineLimits));
    ASSIGN_OR_RETURN(const bj::object* object,
                     read_object("", value,
                                 {"key", "choice", "pieces", "first_delay_ms", "delay_ms", "repeat",
                                  "finish_reason", "error", "ignore_limits"}));
    ScriptReply reply;
    if (const bj::value* key = find(*object, "key")) {
      ASSIGN_OR_RETURN(reply.key, read_string("key", *key, kMaxScriptKeyBytes));
    }
    if (const bj::value* choice = find(*object, "choice")) {
      ASSIGN_OR_RETURN(const int64_t idx, read_integer("choice", *choice, 0, kMaxChoices - 1));
      reply.choice_idx = int32_t(idx);
    }
    ASSIGN_OR_RETURN(reply.first_delay_ns, read_delay(*object, "", "first_delay_ms"));
    ASSIGN_OR_RETURN(const std::optional<int64_t> delay_ns, read_delay(*object, "", "delay_ms"));
    reply.delay_ns = delay_ns.value_or(0);
    if (const bj::value* limits = find(*object, "ignore_limits")) {
      if (!limits->is_bool()) return wrong("ignore_limits", limits, "true or false");
      reply.ignore_limits = limits->get_bool();
    }
    RETURN_IF_ERROR(read_pieces(*object, reply));
    RETURN_IF_ERROR(read_repeat(*object, reply));
    RETURN_IF_ERROR(read_end(*object, reply));
    return reply;
  }

 private:
  Status read_pieces(const bj::object& object, ScriptReply& reply) const {
    const bj::value* list = find(object, "pieces");
    if (list == nullptr || !list->is_array() || list->get_array().size() > kMaxScriptPieces) {
      return wrong("pieces", list, format("a list of up to ", kMaxScriptPieces, " pieces"));
    }
    for (const bj::value& value : list->get_array()) {
      ASSIGN_OR_RETURN(ScriptPiece piece,
                       read_piece(format("pieces[", reply.pieces.size(), "]"), value));
      reply.pieces.push_back(std::move(piece));
    }
    return {};
  }

  Result<ScriptPiece> read_piece(const std::string& field, const bj::value& value) const {
    ASSIGN_OR_RETURN(const bj::object* object,
                     read_object(field, value,
                                 {"text", "base64", "ids", "delay_ms", "logprob", "top_logprobs"}));
    const std::string path = field + ".";
    ScriptPiece piece;
    ASSIGN_OR_RETURN(piece.token_ids, read_tokens(field, *object));
    ASSIGN_OR_RETURN(piece.delay_ns, read_delay(*object, path, "delay_ms"));
    if (const bj::value* logprob = find(*object, "logprob")) {
      ASSIGN_OR_RETURN(piece.logprob, read_logprob(path + "logprob", logprob));
    }
    RETURN_IF_ERROR(read_top_logprobs(path, *object, piece));
    return piece;
  }

  Result<std::vector<int32_t>> read_tokens(const std::string& field,
                                           const bj::object& object) const {
    const bj::value* text = find(object, "text");
    const bj::value* base64 = find(object, "base64");
    const bj::value* ids = find(object, "ids");
    const int num_given = (text != nullptr) + (base64 != nullptr) + (ids != nullptr);
    if (num_given != 1) {
      return wrong(field, format(num_given, " of them"), "one of text, base64, ids");
    }
    if (ids != nullptr) return read_ids(field + ".ids", *ids);
    if (text != nullptr) return read_text(field + ".text", *text);
    const std::string name = field + ".base64";
    ASSIGN_OR_RETURN(const std::string digits, read_string(name, *base64, kMaxScriptLineBytes));
    const std::optional<std::string> bytes = decode_base64(digits);
    if (!bytes) return wrong(name, base64, "base64 with its padding");
    return encode(name, *bytes, TokenLookup::Literals::kAreBytes);
  }

  Result<std::vector<int32_t>> read_text(const std::string& field, const bj::value& value) const {
    ASSIGN_OR_RETURN(const std::string text, read_string(field, value, kMaxScriptLineBytes));
    return encode(field, text, TokenLookup::Literals::kAreTokens);
  }

  Result<std::vector<int32_t>> encode(const std::string& field, std::string_view bytes,
                                      TokenLookup::Literals literals) const {
    Result<std::vector<int32_t>> ids = lookup_.encode(bytes, literals);
    if (ids.has_value()) return ids;
    return Error{ids.error().code, format(field, ": ", ids.error().message)};
  }

  Result<std::vector<int32_t>> read_ids(const std::string& field, const bj::value& value) const {
    if (!value.is_array() || value.get_array().empty()) {
      return wrong(field, &value, "a list of token ids");
    }
    std::vector<int32_t> ids;
    for (const bj::value& item : value.get_array()) {
      ASSIGN_OR_RETURN(const int32_t id, read_token_id(format(field, "[", ids.size(), "]"), item,
                                                       tokens_.bytes.size()));
      ids.push_back(id);
    }
    return ids;
  }

  Status read_top_logprobs(const std::string& path, const bj::object& object,
                           ScriptPiece& piece) const {
    const bj::value* list = find(object, "top_logprobs");
    if (list == nullptr) return {};
    const std::string field = path + "top_logprobs";
    if (!piece.logprob) return wrong(path + "logprob", nullptr, "one beside top_logprobs");
    if (!list->is_array() || list->get_array().size() > kMaxScriptTopLogprobs) {
      return wrong(field, list, format("a list of up to ", kMaxScriptTopLogprobs, " tokens"));
    }
    std::set<int32_t> seen;
    for (const bj::value& value : list->get_array()) {
      const std::string item = format(field, "[", piece.top.size(), "]");
      ASSIGN_OR_RETURN(const bj::object* token, read_object(item, value, {"text", "id", "logprob"}));
      ASSIGN_OR_RETURN(const int32_t id, read_token(item, *token));
      ASSIGN_OR_RETURN(const float logprob, read_logprob(item + ".logprob", find(*token, "logprob")));
      if (!seen.insert(id).second) return wrong(item, format("token ", id, " again"), "others");
      if (!piece.top.empty() && logprob > piece.top.back().logprob) {
        return wrong(item + ".logprob", find(*token, "logprob"), "none above the one before it");
      }
      piece.top.push_back({id, 0, logprob});
    }
    return {};
  }

  Result<int32_t> read_token(const std::string& field, const bj::object& object) const {
    const bj::value* id = find(object, "id");
    const bj::value* text = find(object, "text");
    if ((id != nullptr) == (text != nullptr)) {
      return wrong(field, id != nullptr ? "both" : "neither", "one of id, text");
    }
    if (id != nullptr) return read_token_id(field + ".id", *id, tokens_.bytes.size());
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, read_text(field + ".text", *text));
    if (ids.size() != 1) return wrong(field + ".text", text, "the text of one token");
    return ids[0];
  }

  static Status read_repeat(const bj::object& object, ScriptReply& reply) {
    const bj::value* repeat = find(object, "repeat");
    if (repeat == nullptr) return {};
    if (repeat->is_string() && repeat->get_string() == "forever") {
      if (reply.pieces.empty()) return wrong("pieces", find(object, "pieces"), "some to repeat");
      reply.num_repeats.reset();
      return {};
    }
    Result<int64_t> count = read_integer("repeat", *repeat, 1, kMaxScriptRepeat);
    if (!count.has_value()) {
      return wrong("repeat", repeat, format("an integer from 1 to ", kMaxScriptRepeat,
                                            ", or \"forever\""));
    }
    reply.num_repeats = count.value();
    return {};
  }

  static Status read_end(const bj::object& object, ScriptReply& reply) {
    const bj::value* reason = find(object, "finish_reason");
    const bj::value* error = find(object, "error");
    if (error != nullptr) reply.finish_reason = FinishReason::kError;
    if (reason != nullptr) {
      const bool is_text = reason->is_string();
      const std::string_view name =
          is_text ? std::string_view(reason->get_string().data(), reason->get_string().size()) : "";
      std::optional<FinishReason> found;
      for (FinishReason known : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort,
                                 FinishReason::kError}) {
        if (finish_reason_name(known) == name) found = known;
      }
      if (!found) {
        return wrong("finish_reason", reason, "\"stop\", \"length\", \"abort\" or \"error\"");
      }
      if (error != nullptr && *found != FinishReason::kError) {
        return wrong("finish_reason", reason, "\"error\" beside an error");
      }
      reply.finish_reason = *found;
    }
    if (reply.finish_reason != FinishReason::kError) return {};
    if (error == nullptr) return wrong("error", error, "one with finish_reason \"error\"");
    ASSIGN_OR_RETURN(const bj::object* members, read_object("error", *error, {"message", "after"}));
    const bj::value* message = find(*members, "message");
    if (message == nullptr) return wrong("error.message", message, "a string");
    ASSIGN_OR_RETURN(reply.error_message,
                     read_string("error.message", *message, kMaxScriptKeyBytes));
    if (const bj::value* after = find(*members, "after")) {
      const int64_t num_pieces = int64_t(reply.pieces.size());
      const int64_t most = num_pieces * reply.num_repeats.value_or(kMaxScriptRepeat);
      ASSIGN_OR_RETURN(reply.error_after, read_integer("error.after", *after, 0, most));
    }
    return {};
  }

  const TokenTable& tokens_;
  const TokenLookup& lookup_;
};

}  // namespace

Result<Script> Script::parse(std::string_view text, const TokenTable& tokens) {
  if (text.size() > kMaxScriptBytes) {
    return wrong("", format(text.size(), " bytes"), format("at most ", kMaxScriptBytes));
  }
  const TokenLookup lookup(tokens);
  const LineReader reader(tokens, lookup);
  Script script;
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto in_line = [&](const Error& error) {
      return Error{error.code, format("line ", line_number, ": ", error.message)};
    };
    if (script.replies_.size() == kMaxScriptLines) {
      return in_line(wrong("", "another reply", format("at most ", kMaxScriptLines)));
    }
    Result<ScriptReply> reply = reader.read(line);
    if (!reply.has_value()) return in_line(reply.error());
    script.replies_.push_back(std::move(reply.value()));
  }
  if (script.replies_.empty()) return wrong("", "no line", "at least one reply");
  for (size_t i = 0; i < script.replies_.size(); ++i) {
    const ScriptReply& reply = script.replies_[i];
    Group& group = script.groups_[reply.key];
    Group::Turns& turns = reply.choice_idx ? group.by_choice[*reply.choice_idx] : group.any;
    turns.reply_idx.push_back(i);
  }
  for (const auto& [key, group] : script.groups_) {
    if (!key.empty()) script.keys_.push_back(key);
  }
  std::stable_sort(script.keys_.begin(), script.keys_.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  return script;
}

Result<Script::Group*> Script::find(std::string_view prompt, int32_t first_choice_idx,
                                    int32_t num_choices) {
  const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const std::string& key) {
    return prompt.find(key) != prompt.npos;
  });
  const auto found = groups_.find(key == keys_.end() ? "" : *key);
  if (found == groups_.end()) {
    return Error{Code::kNotFound,
                 format("script: found none of its ", keys_.size(),
                        " keys in the prompt, expected one, or a line without a key")};
  }
  Group& group = found->second;
  for (int32_t c = first_choice_idx; c < first_choice_idx + num_choices; ++c) {
    if (!group.any.reply_idx.empty() || group.by_choice.contains(c)) continue;
    return Error{Code::kNotFound, format("script: found no line of this prompt's for choice ", c,
                                         ", expected one, or one without a choice")};
  }
  return &group;
}

std::vector<const ScriptReply*> Script::choose(Group& group, int32_t first_choice_idx,
                                               int32_t num_choices) const {
  std::vector<const ScriptReply*> chosen;
  const ScriptReply* shared = nullptr;
  for (int32_t c = first_choice_idx; c < first_choice_idx + num_choices; ++c) {
    const auto own = group.by_choice.find(c);
    if (own != group.by_choice.end()) {
      chosen.push_back(&replies_[own->second.take()]);
      continue;
    }
    if (shared == nullptr) shared = &replies_[group.any.take()];
    chosen.push_back(shared);
  }
  return chosen;
}

}  // namespace millrace
