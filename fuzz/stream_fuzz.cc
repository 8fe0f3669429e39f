// What a server streams to the load generator, cut anywhere. The first byte says how. The cuts
// change nothing, and of an event that is JSON the quick reader sees what a tree of it says.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "chat/json.h"
#include "loadgen/sse_reader.h"
#include "loadgen/stream_chunk.h"

using namespace millrace;

namespace {

std::vector<std::string> events_of(std::string_view bytes, uint32_t seed) {
  std::vector<std::string> events;
  SseReader reader([&](std::string_view data) { events.emplace_back(data); });
  while (!bytes.empty()) {
    seed = seed * 1664525 + 1013904223;
    const size_t size = std::min<size_t>(bytes.size(), 1 + (seed >> 16) % 9);
    MR_CHECK(reader.read(bytes.substr(0, size)).ok());
    bytes.remove_prefix(size);
  }
  return events;
}

bool has_content(const JsonValue* value) {
  if (value == nullptr) return false;
  if (value->is(JsonValue::Kind::kString)) return !value->text.empty();
  return value->is(JsonValue::Kind::kArray) && !value->items.empty();
}

// Members that come twice are read both times by one and once by the other.
bool has_repeated(const JsonValue& value) {
  for (const JsonValue& item : value.items) {
    if (item.is_repeated || has_repeated(item)) return true;
  }
  return false;
}

// Keys that are spelled with escapes are other keys to the quick reader.
void compare(const std::string& event) {
  const Result<StreamChunk> chunk = parse_stream_chunk(event);
  JsonLimits limits;
  limits.max_depth = 32;
  const Result<JsonValue> tree = parse_json(event, limits);
  if (!tree.has_value() || has_repeated(tree.value()) || event.find('\\') != event.npos) return;
  bool has_text = false, has_reasoning = false, is_fine = tree.value().is(JsonValue::Kind::kObject);
  const JsonValue* choices = tree.value().find("choices");
  if (choices != nullptr && choices->is(JsonValue::Kind::kArray)) {
    for (const JsonValue& choice : choices->items) {
      is_fine = is_fine && choice.is(JsonValue::Kind::kObject);
      has_text = has_text || has_content(choice.find("text"));
      const JsonValue* delta = choice.find("delta");
      if (delta == nullptr) continue;
      for (const char* name : {"content", "tool_calls", "refusal"}) {
        has_text = has_text || has_content(delta->find(name));
      }
      for (const char* name : {"reasoning_content", "reasoning"}) {
        has_reasoning = has_reasoning || has_content(delta->find(name));
      }
    }
  }
  MR_CHECK_OP(chunk.has_value(), ==, is_fine);
  if (!is_fine) return;
  MR_CHECK_OP(chunk.value().has_text, ==, has_text);
  MR_CHECK_OP(chunk.value().has_reasoning, ==, has_reasoning);
  const JsonValue* error = tree.value().find("error");
  const bool has_error = error != nullptr && !error->is(JsonValue::Kind::kNull);
  MR_CHECK_OP(chunk.value().error.has_value(), ==, has_error);
  const JsonValue* usage = tree.value().find("usage");
  const bool has_usage = usage != nullptr && usage->is(JsonValue::Kind::kObject);
  MR_CHECK_OP(chunk.value().usage.has_value(), ==, has_usage);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> whole;
  SseReader reader([&](std::string_view event) { whole.emplace_back(event); });
  MR_CHECK(reader.read(bytes).ok());
  MR_CHECK(events_of(bytes, data[0]) == whole);
  for (const std::string& event : whole) compare(event);
  compare(std::string(bytes));
  return 0;
}
