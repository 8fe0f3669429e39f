#include "json/document.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <iterator>
#include <unordered_set>
#include <vector>

#include "base/format.h"

namespace millrace {
namespace {

namespace bj = boost::json;

// Looks only at keys: counts them, or finds the first that its object had before, which takes
// several times as long.
struct KeyHandler {
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_key_size = size_t(-1);
  static constexpr size_t max_string_size = size_t(-1);

  bool looks_for_repeated = false;
  size_t num_keys = 0;
  struct Open {
    bool is_object;
    std::string key = {};  // of the value that is being read
    size_t index = 0;      // the same in a list
    std::unordered_set<std::string> keys = {};
  };
  std::vector<Open> open;
  std::string text;  // of a key that comes in parts

  // "added_tokens[3].id"
  std::string path() const {
    std::string out;
    for (const Open& o : open) {
      if (!o.is_object) {
        out += format('[', o.index, ']');
      } else {
        out += (out.empty() ? "" : ".") + o.key;
      }
    }
    return out;
  }

  bool begin(bool is_object) {
    if (looks_for_repeated) open.push_back({.is_object = is_object});
    return true;
  }
  bool end() {
    if (looks_for_repeated) open.pop_back();
    return value_ends();
  }
  bool value_ends() {
    if (!open.empty()) ++open.back().index;
    return true;
  }

  bool on_document_begin(bj::error_code&) { return true; }
  bool on_document_end(bj::error_code&) { return true; }
  bool on_object_begin(bj::error_code&) { return begin(true); }
  bool on_array_begin(bj::error_code&) { return begin(false); }
  bool on_object_end(size_t, bj::error_code&) { return end(); }
  bool on_array_end(size_t, bj::error_code&) { return end(); }
  bool on_key_part(bj::string_view part, size_t, bj::error_code&) {
    if (looks_for_repeated) text.append(part.data(), part.size());
    return true;
  }
  bool on_key(bj::string_view part, size_t, bj::error_code& ec) {
    ++num_keys;
    if (!looks_for_repeated) return true;
    text.append(part.data(), part.size());
    Open& object = open.back();
    object.key.swap(text);
    text.clear();
    if (object.keys.insert(object.key).second) return true;
    ec = bj::error::syntax;
    return false;
  }
  bool on_string_part(bj::string_view, size_t, bj::error_code&) { return true; }
  bool on_string(bj::string_view, size_t, bj::error_code&) { return value_ends(); }
  bool on_number_part(bj::string_view, bj::error_code&) { return true; }
  bool on_int64(int64_t, bj::string_view, bj::error_code&) { return value_ends(); }
  bool on_uint64(uint64_t, bj::string_view, bj::error_code&) { return value_ends(); }
  bool on_double(double, bj::string_view, bj::error_code&) { return value_ends(); }
  bool on_bool(bool, bj::error_code&) { return value_ends(); }
  bool on_null(bj::error_code&) { return value_ends(); }
  bool on_comment_part(bj::string_view, bj::error_code&) { return true; }
  bool on_comment(bj::string_view, bj::error_code&) { return true; }
};

size_t count_keys(const bj::value& value) {
  size_t count = 0;
  if (value.is_array()) {
    for (const bj::value& item : value.get_array()) count += count_keys(item);
  } else if (value.is_object()) {
    count += value.get_object().size();
    for (const auto& member : value.get_object()) count += count_keys(member.value());
  }
  return count;
}

// Requires: `text` is JSON in which a key is repeated.
Error repeated_key(std::string_view text, const bj::parse_options& options) {
  bj::basic_parser<KeyHandler> parser(options);
  parser.handler().looks_for_repeated = true;
  bj::error_code ec;
  const size_t end = parser.write_some(false, text.data(), text.size(), ec);
  return {Code::kCorrupt, format(parser.handler().path(), ": found again at byte ", end,
                                 ", expected each key once")};
}

constexpr size_t kMostShown = 60;  // bytes of a string or a list in a message

void append_string(std::string_view text, std::string& out) {
  const bool is_cut = text.size() > kMostShown;
  if (is_cut) {
    size_t end = kMostShown;
    while (end > 0 && (uint8_t(text[end]) & 0xC0) == 0x80) --end;  // not inside a character
    text = text.substr(0, end);
  }
  out += bj::serialize(bj::string_view(text.data(), text.size()));
  if (is_cut) out += "...";
}

template <class T>
void append_number(T value, std::string& out) {
  char digits[32];
  out.append(digits, std::to_chars(digits, std::end(digits), value).ptr);
}

void append_value(const bj::value& value, std::string& out) {
  switch (value.kind()) {
    case bj::kind::null:
      out += "null";
      return;
    case bj::kind::bool_:
      out += value.get_bool() ? "true" : "false";
      return;
    case bj::kind::int64:
      return append_number(value.get_int64(), out);
    case bj::kind::uint64:
      return append_number(value.get_uint64(), out);
    case bj::kind::double_:
      return append_number(value.get_double(), out);
    case bj::kind::string:
      return append_string({value.get_string().data(), value.get_string().size()}, out);
    case bj::kind::array:
      out += '[';
      for (const bj::value& item : value.get_array()) {
        if (&item != value.get_array().begin()) out += ", ";
        if (out.size() > kMostShown) {
          out += "...";
          break;
        }
        append_value(item, out);
      }
      out += ']';
      return;
    case bj::kind::object:
      out += value.get_object().empty() ? "{}" : "an object";
      return;
  }
}

}  // namespace

Result<bj::value> parse_json_file(std::string_view text, const JsonFileLimits& limits,
                                  bj::storage_ptr memory) {
  if (text.size() > limits.max_bytes) {
    return Error{Code::kExhausted,
                 format("found ", text.size(), " bytes, expected at most ", limits.max_bytes)};
  }
  bj::parse_options options;
  options.max_depth = limits.max_depth;
  bj::basic_parser<KeyHandler> parser(options);
  bj::error_code ec;
  const size_t end = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && end != text.size()) ec = bj::error::extra_data;
  if (!ec) {
    bj::value document = bj::parse({text.data(), text.size()}, ec, std::move(memory), options);
    // The tree keeps one value of each key.
    if (!ec && count_keys(document) != parser.handler().num_keys) {
      return repeated_key(text, options);
    }
    if (!ec) return document;
  }
  // Comparing error codes themselves would need the library's categories.
  const bool is_too_deep = ec.value() == int(bj::error::too_deep);
  const std::string limit = is_too_deep ? format(" of at most ", limits.max_depth, " levels") : "";
  return Error{Code::kCorrupt,
               format("found ", ec.message(), " at byte ", end, ", expected JSON", limit)};
}

std::string describe(const bj::value* value) {
  if (value == nullptr) return "nothing";
  std::string out;
  append_value(*value, out);
  return out;
}

}  // namespace millrace
