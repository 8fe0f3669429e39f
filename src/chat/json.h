#pragma once

// JSON as the prompt needs it. The model was trained on text written by Python's json module, so a
// tool schema must come out with the digits and the key order that it came in with. A general
// library turns numbers into doubles and loses both; here a number keeps its spelling until it is
// written.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  bool is_repeated = false;       // of an object's item: its key came more than once
  std::string text;               // a string's characters, a number's spelling
  std::vector<std::string> keys;  // of an object: keys[i] names items[i]; unique, in input order
  std::vector<JsonValue> items;   // of an array or an object

  const JsonValue* find(std::string_view key) const;  // null when absent or not an object
  bool is(Kind other) const { return kind == other; }
  bool is_integer() const;  // a number without point and exponent
};

struct JsonLimits {
  int64_t max_bytes = int64_t(256) << 20;  // images travel inside a request
  int64_t max_values = int64_t(1) << 20;   // each costs about 100 bytes
  int max_depth = 128;
};

// kPython also reads NaN, Infinity and -Infinity, as Python does; they can be read, not written.
enum class JsonSyntax { kStandard, kPython };

// The whole text must be one value. Strings must be valid UTF-8 without lone surrogates. A repeated
// key keeps its first place and its last value, which is marked. Errors: kExhausted for a limit,
// otherwise kInvalidArgument with the byte position.
Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits = {},
                             JsonSyntax syntax = JsonSyntax::kStandard);

// Appends `value` as Python's json.dumps(value, ensure_ascii=False) writes it. Refuses numbers
// that are infinite as doubles.
Status write_json(const JsonValue& value, std::string& out);

// Appends what stands between the quotes.
void append_json_escaped(std::string_view text, std::string& out);
void append_json_string(std::string_view text, std::string& out);

}  // namespace millrace
