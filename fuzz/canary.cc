// A fuzzer that must fail within seconds: it holds that no list of three numbers is JSON. A blind
// fuzzer would not find one.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "chat/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using millrace::JsonValue;
  const auto value = millrace::parse_json({reinterpret_cast<const char*>(data), size});
  MR_CHECK(!value.has_value() || value.value().items.size() < 3);
  return 0;
}
