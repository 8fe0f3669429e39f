#include "chat/json_writer.h"

#include <charconv>
#include <cmath>

#include "chat/json.h"

namespace millrace {
namespace {

template <class T>
std::string number_text(T number) {
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr};
}

}  // namespace

JsonWriter& JsonWriter::open(char bracket) {
  raw({&bracket, 1});
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  if (needs_comma_) text_ += ", ";
  text_ += text;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  value(name);
  text_ += ": ";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  raw("");
  append_json_string(text, text_);
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) { return raw(flag ? "true" : "false"); }
JsonWriter& JsonWriter::null() { return raw("null"); }
JsonWriter& JsonWriter::value(int64_t number) { return raw(number_text(number)); }
JsonWriter& JsonWriter::value(uint64_t number) { return raw(number_text(number)); }

JsonWriter& JsonWriter::value(float number) {
  if (std::isinf(number) && number < 0) return raw("-9999.0");
  return std::isfinite(number) ? raw(number_text(number)) : null();
}

JsonWriter& JsonWriter::value(double number) {
  if (std::isinf(number) && number < 0) return raw("-9999.0");
  return std::isfinite(number) ? raw(number_text(number)) : null();
}

}  // namespace millrace
