#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Writes one JSON value, member by member, on one line. Numbers are written so that reading them
// gives the same number (shortest round trip). JSON has no infinities: a log-probability of minus
// infinity becomes -9999.0, other numbers that are not finite become null.
//
//   JsonWriter w;
//   w.begin_object().key("ids").begin_array().value(7).end_array().end_object();
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);  // requires: UTF-8
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag);
  JsonWriter& value(float number);
  JsonWriter& value(double number);
  JsonWriter& value(int number) { return value(int64_t(number)); }
  JsonWriter& value(int64_t number);
  JsonWriter& value(uint64_t number);
  JsonWriter& null();
  JsonWriter& json(std::string_view text) { return raw(text); }  // requires: one JSON value

  template <class T>
  JsonWriter& value(const std::vector<T>& items) {
    begin_array();
    for (const T& item : items) value(item);
    return end_array();
  }
  template <class T>
  JsonWriter& member(std::string_view name, const T& item) {
    return key(name).value(item);
  }

  const std::string& text() const { return text_; }
  // Begins again, in the room that is there.
  void clear() {
    text_.clear();
    needs_comma_ = false;
  }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& raw(std::string_view text);

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace millrace
