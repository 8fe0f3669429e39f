// Recordings of runs. Whatever is accepted is written again as it was, byte for byte in what it says;
// cut off anywhere it is read up to the cut; and a replay of it ends with a report or a refusal.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/recording.h"
#include "engine/replay.h"

using namespace millrace;

namespace {

// Records that were read; false: the text was refused.
bool read(std::string_view text, std::vector<Record>& records) {
  RecordingReader reader(text);
  for (;;) {
    Result<std::optional<Record>> record = reader.next();
    if (!record.has_value()) {
      MR_CHECK(!record.error().message.empty());
      return false;
    }
    if (!record.value()) return true;
    records.push_back(std::move(*record.value()));
  }
}

std::string write(const std::vector<Record>& records) {
  uint64_t sum = kFirstSum;
  std::string text;
  for (const Record& record : records) append_record(record, sum, text);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<Record> records;
  (void)read(input, records);

  // Nobody guesses checksums: each line gets the one that it should have.
  uint64_t sum = kFirstSum;
  std::string sealed;
  for (size_t at = 0; at < input.size();) {
    const size_t end = std::min(input.find('\n', at), input.size());
    const std::string_view line = input.substr(at, end - at);
    const size_t begin = sealed.size();
    sealed += line.substr(0, line.rfind(",\"sum\":"));
    append_sum(begin, sum, sealed);
    at = end + 1;
  }
  records.clear();
  if (!read(sealed, records)) return 0;
  const std::string text = write(records);
  std::vector<Record> again;
  MR_CHECK(read(text, again));
  MR_CHECK(write(again) == text);

  const size_t cut = (size * 7919) % text.size();
  std::vector<Record> before_cut;
  const bool has_header = text.find('\n') < cut;
  MR_CHECK(read(std::string_view(text).substr(0, cut), before_cut) == has_header);
  MR_CHECK_OP(int64_t(before_cut.size()), ==, std::count(text.begin(), text.begin() + cut, '\n'));

  const RecordingHeader& header = std::get<RecordingHeader>(records[0]);
  if (header.scheduler.num_blocks > 4096 || header.vocab_size > 65536) return 0;  // memory
  const Result<ReplayReport> report = replay(text, nullptr);
  if (report.has_value()) {
    MR_CHECK_OP(report.value().num_lines, <=, int64_t(records.size()));
    MR_CHECK_OP(report.value().num_differences, <=, 1);
  } else {
    MR_CHECK(!report.error().message.empty());
  }
  return 0;
}
