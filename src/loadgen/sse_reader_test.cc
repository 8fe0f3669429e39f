#include "loadgen/sse_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

std::vector<std::string> events_of(std::string_view bytes, size_t cut) {
  std::vector<std::string> events;
  SseReader reader([&](std::string_view data) { events.emplace_back(data); });
  while (!bytes.empty()) {
    EXPECT_TRUE(reader.read(bytes.substr(0, cut)).ok());
    bytes.remove_prefix(std::min(cut, bytes.size()));
  }
  return events;
}

TEST(SseReader, ReadsTheSameEventsHoweverTheBytesAreCut) {
  const struct {
    const char* bytes;
    std::vector<std::string> events;
  } cases[] = {
      {"data: a\n\ndata: b\n\n", {"a", "b"}},
      {"data: a\r\n\r\ndata: b\r\n\r\n", {"a", "b"}},
      {"data: a\r\rdata: b\r\r", {"a", "b"}},
      {"data:a\n\ndata:  b\n\n", {"a", " b"}},  // one blank belongs to the field
      {"data: a\ndata: b\n\n", {"a\nb"}},       // lines of one event
      {"data: a\r\ndata: b\n\r\n", {"a\nb"}},
      {": keep-alive\n\ndata: a\n\n", {"a"}},      // a comment is no event
      {"event: ping\nid: 7\ndata: a\n\n", {"a"}},  // other fields
      {"database: a\n\ndat: b\n\n", {}},           // other names
      {"data\n\n", {""}},                          // a name alone
      {"data: a\n\ndata: cut off", {"a"}},         // no end, no event
      {"data: a\n\ndata: no blank line\n", {"a"}},
      {"\xEF\xBB\xBF"
       "data: a\n\n",
       {"a"}},
      {"\n\n\ndata: a\n\n\n\n", {"a"}},
      {"data: {\"x\": \"\xC3\xA9: \\n\"}\n\n", {"{\"x\": \"\xC3\xA9: \\n\"}"}},
  };
  for (const auto& each : cases) {
    for (const size_t cut : {size_t(1), size_t(2), size_t(3), size_t(7), size_t(1000)}) {
      EXPECT_EQ(events_of(each.bytes, cut), each.events) << each.bytes << " cut to " << cut;
    }
  }
}

TEST(SseReader, RefusesAnEventThatIsTooLongAndAllThatFollows) {
  const std::string piece(size_t(1) << 20, 'x');
  SseReader line([](std::string_view) { FAIL(); });
  SseReader lines([](std::string_view) { FAIL(); });
  Status of_line, of_lines;
  for (int i = 0; i < 65; ++i) {
    of_line = line.read(i == 0 ? "data: " + piece : piece);
    of_lines = lines.read("data: " + piece + "\n");
  }
  EXPECT_FALSE(of_line.ok());
  ASSERT_FALSE(of_lines.ok());
  EXPECT_EQ(of_lines.error().code, Code::kExhausted);
  EXPECT_FALSE(lines.read("\n\ndata: a\n\n").ok());
}

}  // namespace
}  // namespace millrace
