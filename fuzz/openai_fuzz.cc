// Bodies of completion requests, of both kinds. What is accepted keeps its promises, and what is
// refused makes an error body that is JSON.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "openai/completion_request.h"
#include "openai/completion_response.h"
#include "request/request.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<JsonValue> body = parse_json(text);
  if (!body.has_value()) return 0;
  for (const openai::Endpoint endpoint :
       {openai::Endpoint::kChatCompletions, openai::Endpoint::kCompletions}) {
    const Result<openai::CompletionRequest> request =
        openai::parse_completion_request(endpoint, body.value(), {});
    if (!request.has_value()) {
      const Result<JsonValue> error = parse_json(openai::error_body(openai::api_error(request.error())));
      MR_CHECK(error.has_value() && error.value().find("error") != nullptr);
      continue;
    }
    const bool is_chat = endpoint == openai::Endpoint::kChatCompletions;
    MR_CHECK(is_chat ? !request.value().chat.messages.empty() : !request.value().prompts.empty());
    const int32_t num_choices = request.value().sampling.num_choices;
    MR_CHECK(num_choices >= 1 && num_choices <= kMaxChoices);
    (void)validate(request.value().sampling.params, 4096).ok();
  }
  return 0;
}
