// Replies, whole, byte by byte and cut as the input says: always the events of the definition, and
// no markup in what a client sees. The first two bytes are the options and the seed of the cuts.

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "chat/reply_parser.h"
#include "chat/strict_parser.h"
#include "chat/test_reply_definition.h"

using namespace millrace;

namespace {

using Kind = ReplyEvent::Kind;

struct Outcome {
  std::vector<ReplyEvent> events;  // adjacent deltas merged
  std::optional<std::string> matched_stop;
  int64_t num_invalid_bytes;
};

Outcome parsed(const ReplyParserOptions& options, const std::vector<std::string_view>& pieces) {
  ReplyParser parser(options);
  std::vector<ReplyEvent> events;
  const auto take = [&](const std::vector<ReplyEvent>& more) {
    for (const ReplyEvent& event : more) {
      MR_CHECK(!event.text.empty() || event.kind == Kind::kToolCall);
      if (event.kind != Kind::kToolCall && !events.empty() && events.back().kind == event.kind &&
          events.back().call_idx == event.call_idx) {
        events.back().text += event.text;
      } else {
        events.push_back(event);
      }
    }
  };
  for (const std::string_view piece : pieces) take(parser.feed(piece));
  take(parser.finish());
  return {std::move(events), parser.matched_stop(), parser.num_invalid_bytes()};
}

bool same(const std::vector<ReplyEvent>& a, const std::vector<ReplyEvent>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].kind != b[i].kind || a[i].call_idx != b[i].call_idx || a[i].text != b[i].text)
      return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  ReplyParserOptions options;
  options.start = ReplyStart(data[0] % 5);
  options.parse_tools = (data[0] & 0x20) == 0;
  options.json_output = (data[0] & 0x40) != 0;
  if (data[0] & 0x80) options.stop = {"STOP", "\n\n", "", "}", "</think", "ST"};

  const ReplyDefinition want(options, text);
  std::vector<std::string_view> bytes, pieces;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  std::minstd_rand random(data[1] + 1u);
  for (size_t i = 0; i < text.size(); i += pieces.back().size()) {
    pieces.push_back(text.substr(i, 1 + random() % 8));
  }
  for (const auto& cut : {std::vector{text}, bytes, pieces}) {
    const Outcome got = parsed(options, cut);
    MR_CHECK(same(got.events, want.events()));
    MR_CHECK(got.matched_stop == want.matched_stop());
    MR_CHECK(got.num_invalid_bytes == want.num_invalid_bytes());
  }

  // A stray tag that is taken out may join what stood around it to something that looks like
  // markup; nothing else can.
  if (want.num_invalid_bytes() == 0) {
    for (const ReplyEvent& event : want.events()) {
      if (event.kind == Kind::kReasoning || event.kind == Kind::kContent) {
        MR_CHECK(!options.parse_tools || event.text.find("<｜DSML｜") == event.text.npos);
        MR_CHECK(event.text.find("</think>") == event.text.npos);
      }
    }
  }
  (void)parse_reply_strictly(text, data[0] & 1);
  return 0;
}
