#include "chat/json.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/format.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

bool is_digit(char c) { return '0' <= c && c <= '9'; }

// Length of the UTF-8 sequence at the start of `text`, 0 if it is not one: no overlong forms, no
// surrogates, nothing above U+10FFFF.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t(0); };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (0xC2 <= lead && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (0xE0 <= lead && lead <= 0xEF) {
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;
    if (lead == 0xED && byte(1) > 0x9F) return 0;
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (0xF0 <= lead && lead <= 0xF4) {
    if (lead == 0xF0 && byte(1) < 0x90) return 0;
    if (lead == 0xF4 && byte(1) > 0x8F) return 0;
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

void append_utf8(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out += char(code_point);
  } else if (code_point < 0x800) {
    out += char(0xC0 | code_point >> 6);
    out += char(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    out += char(0xE0 | code_point >> 12);
    out += char(0x80 | (code_point >> 6 & 0x3F));
    out += char(0x80 | (code_point & 0x3F));
  } else {
    out += char(0xF0 | code_point >> 18);
    out += char(0x80 | (code_point >> 12 & 0x3F));
    out += char(0x80 | (code_point >> 6 & 0x3F));
    out += char(0x80 | (code_point & 0x3F));
  }
}

// Recursive descent. The depth limit bounds the recursion.
class Reader {
 public:
  Reader(std::string_view text, const JsonLimits& limits, JsonSyntax syntax)
      : text_(text), limits_(limits), syntax_(syntax) {}

  Result<JsonValue> document() {
    JsonValue value;
    RETURN_IF_ERROR(read_value(value, 0));
    skip_space();
    if (pos_ != text_.size()) return unexpected("the end");
    return value;
  }

 private:
  Error unexpected(std::string_view expected) const {
    if (pos_ >= text_.size()) {
      return Error{Code::kInvalidArgument,
                   format("JSON byte ", pos_, ": found the end, expected ", expected)};
    }
    const uint8_t c = uint8_t(text_[pos_]);
    const std::string found = 0x20 <= c && c < 0x7F ? format('\'', char(c), '\'')
                                                    : format("byte value ", int(c));
    return Error{Code::kInvalidArgument,
                 format("JSON byte ", pos_, ": found ", found, ", expected ", expected)};
  }

  Error over_limit(std::string_view what, int64_t limit) const {
    return Error{Code::kExhausted, format("JSON byte ", pos_, ": more than ", limit, " ", what)};
  }

  char peek() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }

  void skip_space() {
    pos_ = std::min(text_.find_first_not_of(" \t\n\r", pos_), text_.size());
  }

  bool accept(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  Status read_value(JsonValue& value, int depth) {
    skip_space();
    if (++num_values_ > limits_.max_values) return over_limit("values", limits_.max_values);
    switch (peek()) {
      case '{':
      case '[':
        if (depth >= limits_.max_depth) return over_limit("nested levels", limits_.max_depth);
        return peek() == '{' ? read_object(value, depth + 1) : read_array(value, depth + 1);
      case '"':
        value.kind = Kind::kString;
        return read_string(value.text);
    }
    if (accept("null")) return {};
    for (const bool boolean : {true, false}) {
      if (!accept(boolean ? "true" : "false")) continue;
      value.kind = Kind::kBool;
      value.boolean = boolean;
      return {};
    }
    return read_number(value);
  }

  Status read_number(JsonValue& value) {
    value.kind = Kind::kNumber;
    const size_t begin = pos_;
    if (syntax_ == JsonSyntax::kPython) {
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (!accept(word)) continue;
        value.text = word;
        return {};
      }
    }
    accept("-");
    if (!is_digit(peek())) return unexpected(pos_ == begin ? "a value" : "a digit");
    if (!accept("0")) skip_digits();
    if (accept(".")) {
      if (!is_digit(peek())) return unexpected("a digit");
      skip_digits();
    }
    if (accept("e") || accept("E")) {
      if (!accept("+")) accept("-");
      if (!is_digit(peek())) return unexpected("a digit");
      skip_digits();
    }
    value.text = text_.substr(begin, pos_ - begin);
    return {};
  }

  void skip_digits() {
    while (is_digit(peek())) ++pos_;
  }

  Status read_string(std::string& out) {
    ++pos_;  // the opening quote
    while (true) {
      const size_t begin = pos_;
      RETURN_IF_ERROR(skip_plain_characters());
      out += text_.substr(begin, pos_ - begin);
      if (accept("\"")) return {};
      RETURN_IF_ERROR(read_escape(out));
    }
  }

  // To the closing quote or the next escape.
  Status skip_plain_characters() {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '"' || c == '\\') return {};
      if (uint8_t(c) < 0x20) return unexpected("an escaped control character");
      const size_t length = utf8_length(text_.substr(pos_, 4));
      if (length == 0) return unexpected("valid UTF-8");
      pos_ += length;
    }
    return unexpected("'\"'");
  }

  Status read_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    ++pos_;  // the backslash
    if (peek() == 'u') {
      uint32_t unit = 0;
      RETURN_IF_ERROR(read_code_unit(unit));
      if (0xD800 <= unit && unit < 0xDC00 && text_.substr(pos_, 2) == "\\u") {
        ++pos_;
        uint32_t low = 0;
        RETURN_IF_ERROR(read_code_unit(low));
        if (low < 0xDC00 || 0xDFFF < low) return lone_surrogate();
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
      }
      if (0xD800 <= unit && unit < 0xE000) return lone_surrogate();
      append_utf8(unit, out);
      return {};
    }
    const size_t which = pos_ < text_.size() ? kNames.find(text_[pos_]) : std::string::npos;
    if (which == std::string::npos) return unexpected("an escape character");
    out += kValues[which];
    ++pos_;
    return {};
  }

  Error lone_surrogate() const {
    return Error{Code::kInvalidArgument,
                 format("JSON byte ", pos_, ": found a lone surrogate, expected a pair")};
  }

  Status read_code_unit(uint32_t& unit) {
    ++pos_;  // the u
    const char* begin = text_.data() + pos_;
    const size_t available = std::min<size_t>(4, text_.size() - pos_);
    const auto result = std::from_chars(begin, begin + available, unit, 16);
    if (result.ptr != begin + 4) return unexpected("four hexadecimal digits");
    pos_ += 4;
    return {};
  }

  Status read_array(JsonValue& value, int depth) {
    value.kind = Kind::kArray;
    ++pos_;
    skip_space();
    if (accept("]")) return {};
    while (true) {
      RETURN_IF_ERROR(read_value(value.items.emplace_back(), depth));
      skip_space();
      if (accept("]")) return {};
      if (!accept(",")) return unexpected("',' or ']'");
    }
  }

  Status read_object(JsonValue& value, int depth) {
    value.kind = Kind::kObject;
    ++pos_;
    skip_space();
    if (accept("}")) return {};
    while (true) {
      skip_space();
      if (peek() != '"') return unexpected("a key");
      RETURN_IF_ERROR(read_string(value.keys.emplace_back()));
      skip_space();
      if (!accept(":")) return unexpected("':'");
      RETURN_IF_ERROR(read_value(value.items.emplace_back(), depth));
      skip_space();
      if (accept("}")) break;
      if (!accept(",")) return unexpected("',' or '}'");
    }
    merge_repeated_keys(value);
    return {};
  }

  // Hashed, because a client chooses the keys and may send very many.
  static void merge_repeated_keys(JsonValue& object) {
    std::unordered_map<std::string_view, size_t> first;
    std::vector<size_t> kept;
    for (size_t i = 0; i < object.keys.size(); ++i) {
      const auto [where, is_new] = first.emplace(object.keys[i], i);
      if (is_new) {
        kept.push_back(i);
      } else {
        object.items[where->second] = std::move(object.items[i]);
        object.items[where->second].is_repeated = true;
      }
    }
    if (kept.size() == object.keys.size()) return;
    std::vector<std::string> keys;
    std::vector<JsonValue> items;
    for (const size_t i : kept) {
      keys.push_back(std::move(object.keys[i]));
      items.push_back(std::move(object.items[i]));
    }
    object.keys = std::move(keys);
    object.items = std::move(items);
  }

  std::string_view text_;
  const JsonLimits& limits_;
  JsonSyntax syntax_;
  size_t pos_ = 0;
  int64_t num_values_ = 0;
};

// Decimal exponent of the first digit that is not zero. Tells overflow from underflow, which
// std::from_chars reports alike.
int64_t decimal_exponent(std::string_view spelling) {
  const size_t e = std::min(spelling.find_first_of("eE"), spelling.size());
  const std::string_view mantissa = spelling.substr(0, e);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const size_t digit = mantissa.find_first_of("123456789");
  const int64_t position =
      digit < point ? int64_t(point - digit) - 1 : -int64_t(digit - point);
  if (e == spelling.size()) return position;
  std::string_view exponent = spelling.substr(e + 1);
  if (exponent.front() == '+') exponent.remove_prefix(1);
  int64_t value = 0;
  const auto result = std::from_chars(exponent.data(), exponent.data() + exponent.size(), value);
  if (result.ec != std::errc()) value = exponent.front() == '-' ? INT32_MIN : INT32_MAX;
  return position + std::clamp<int64_t>(value, INT32_MIN, INT32_MAX);
}

// Python's repr of the double, or nothing if it is not finite.
std::optional<std::string> float_repr(std::string_view spelling) {
  double value = 0;
  const auto parsed =
      std::from_chars(spelling.data(), spelling.data() + spelling.size(), value);
  if (parsed.ec == std::errc::invalid_argument || value != value) return std::nullopt;  // NaN
  if (parsed.ec == std::errc::result_out_of_range) {
    if (decimal_exponent(spelling) > 0) return std::nullopt;
    value = spelling.front() == '-' ? -0.0 : 0.0;
  }
  char buffer[64];
  auto end = std::to_chars(buffer, std::end(buffer), value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  if (scientific.find('e') == std::string::npos) return std::nullopt;  // infinite
  int exponent = 0;
  const char* digits = scientific.data() + scientific.find('e') + 1;
  if (*digits == '+') ++digits;
  std::from_chars(digits, scientific.data() + scientific.size(), exponent);
  if (exponent < -4 || 16 <= exponent) return scientific;
  end = std::to_chars(buffer, std::end(buffer), value, std::chars_format::fixed).ptr;
  std::string plain(buffer, end);
  if (plain.find('.') == std::string::npos) plain += ".0";
  return plain;
}

Status write_number(const JsonValue& number, std::string& out) {
  if (number.is_integer()) {
    out += number.text == "-0" ? "0" : number.text;
    return {};
  }
  const std::optional<std::string> repr = float_repr(number.text);
  if (!repr) {
    return Error{Code::kInvalidArgument,
                 format("number ", number.text.substr(0, 40), " is not finite as a double")};
  }
  out += *repr;
  return {};
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto it = std::find(keys.begin(), keys.end(), key);
  return it == keys.end() ? nullptr : &items[size_t(it - keys.begin())];
}

bool JsonValue::is_integer() const {
  return kind == Kind::kNumber && text.find_first_not_of("-0123456789") == std::string::npos;
}

Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits, JsonSyntax syntax) {
  if (int64_t(text.size()) > limits.max_bytes) {
    return Error{Code::kExhausted,
                 format("JSON text: ", text.size(), " bytes, at most ", limits.max_bytes)};
  }
  return Reader(text, limits, syntax).document();
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kValues = "\"\\\n\r\t\b\f";
  constexpr std::string_view kNames = "\"\\nrtbf";
  constexpr std::string_view kHex = "0123456789abcdef";
  size_t num_done = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '"' && c != '\\' && uint8_t(c) >= 0x20) continue;
    out += text.substr(num_done, i - num_done);
    num_done = i + 1;
    if (const size_t which = kValues.find(c); which != std::string::npos) {
      out += '\\';
      out += kNames[which];
    } else {
      out += "\\u00";
      out += kHex[uint8_t(c) >> 4];
      out += kHex[uint8_t(c) & 15];
    }
  }
  out += text.substr(num_done);
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  append_json_escaped(text, out);
  out += '"';
}

Status write_json(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case Kind::kNull:
      out += "null";
      return {};
    case Kind::kBool:
      out += value.boolean ? "true" : "false";
      return {};
    case Kind::kNumber:
      return write_number(value, out);
    case Kind::kString:
      append_json_string(value.text, out);
      return {};
    case Kind::kArray:
    case Kind::kObject:
      break;
  }
  const bool is_object = value.is(Kind::kObject);
  out += is_object ? '{' : '[';
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (is_object) {
      append_json_string(value.keys[i], out);
      out += ": ";
    }
    RETURN_IF_ERROR(write_json(value.items[i], out));
  }
  out += is_object ? '}' : ']';
  return {};
}

}  // namespace millrace
