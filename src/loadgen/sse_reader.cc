#include "loadgen/sse_reader.h"

#include "base/format.h"

namespace millrace {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

Status SseReader::read(std::string_view bytes) {
  const auto too_long = [&]() -> Status {
    has_failed_ = true;
    return Error{Code::kExhausted, format("an event of more than ", kMaxEventBytes, " bytes")};
  };
  if (has_failed_) return too_long();
  while (!bytes.empty()) {
    if (is_behind_cr_) {
      is_behind_cr_ = false;
      if (bytes[0] == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > kMaxEventBytes) return too_long();
    if (end == bytes.npos) {
      line_ += part;
      return {};
    }
    is_behind_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(part);
    } else {
      line_ += part;
      take_line(line_);
      line_.clear();
    }
  }
  return {};
}

void SseReader::take_line(std::string_view line) {
  if (is_first_line_) {
    is_first_line_ = false;
    if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) {
    if (has_data_) on_event_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;
  std::string_view value = colon == line.npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

}  // namespace millrace
