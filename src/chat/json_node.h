#pragma once

// A value inside a request and where it stands, so that refusals name the place, what was found
// and what was expected.

#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/status.h"
#include "chat/json.h"

namespace millrace {

struct JsonNode {
  const JsonValue* value;  // null: absent
  std::string path;

  bool given() const { return value != nullptr && !value->is(JsonValue::Kind::kNull); }
  bool is(JsonValue::Kind kind) const { return value != nullptr && value->is(kind); }
  bool is_text(std::string_view text) const {
    return is(JsonValue::Kind::kString) && value->text == text;
  }
  JsonNode at(std::string_view key) const;
  JsonNode at(size_t i) const;
};

// "temperature: found string "hot", expected a number"
Error refuse(const JsonNode& node, std::string_view expected);
// "temperature: REASON"
Error refuse_reason(const JsonNode& node, std::string_view reason);

// Which of two values a client means cannot be known. JSON that the prompt repeats (schemas,
// arguments) is not asked: it is written as the model's own encoder writes it.
Status refuse_repeated(const JsonNode& object);
Status expect_object(const JsonNode& node);

// Absent and null count as not given.
Result<std::string> read_string(const JsonNode& node, std::string_view if_absent = "");
Result<bool> read_bool(const JsonNode& node, bool if_absent);
Result<std::vector<JsonNode>> read_list(const JsonNode& node);  // its elements; none if absent
Result<std::string> read_json(const JsonNode& node);            // its text, as the prompt shows it

template <class T>
std::string expected_number(T least, T most) {
  if constexpr (!std::is_integral_v<T>) return "a number";
  return format("an integer from ", least, " to ", most);
}

// The whole text as a number.
template <class T>
std::optional<T> number_of(std::string_view text) {
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A number from `least` to `most`, which refusals of integers name. An integer may be spelled 2.0, as
// by clients whose numbers are doubles.
template <class T>
Result<std::optional<T>> read_number(const JsonNode& node,
                                     T least = std::numeric_limits<T>::lowest(),
                                     T most = std::numeric_limits<T>::max()) {
  if (!node.given()) return std::optional<T>();
  std::string_view text;
  if (node.is(JsonValue::Kind::kNumber)) text = node.value->text;
  std::optional<T> number = number_of<T>(text);
  if constexpr (std::is_integral_v<T>) {
    constexpr double kExact = 9007199254740992;  // 2^53
    const std::optional<double> real = number ? std::nullopt : number_of<double>(text);
    if (real && -kExact <= *real && *real <= kExact && *real == double(int64_t(*real)) &&
        std::in_range<T>(int64_t(*real))) {
      number = T(int64_t(*real));
    }
  }
  if (!number || *number < least || most < *number) {
    return refuse(node, expected_number(least, most));
  }
  return number;
}

}  // namespace millrace
