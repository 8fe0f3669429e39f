#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

// Server-sent events: bytes, cut anywhere, to the data of each event. Lines end with LF, CR LF or
// CR; lines of one event's data are joined by LF; comments, names and ids are left out, and so is
// an event without an end.
class SseReader {
 public:
  static constexpr size_t kMaxEventBytes = size_t(64) << 20;

  // `on_event` gets the data of an event, valid during the call.
  explicit SseReader(std::function<void(std::string_view data)> on_event)
      : on_event_(std::move(on_event)) {}

  // An error (kExhausted) when a line or an event is too long; then nothing more is read.
  Status read(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  std::function<void(std::string_view)> on_event_;
  std::string line_;  // begun in an earlier call
  std::string data_;
  bool has_data_ = false;
  bool is_behind_cr_ = false;  // an LF that follows ends no other line
  bool is_first_line_ = true;
  bool has_failed_ = false;
};

}  // namespace millrace
