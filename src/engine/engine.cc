#include "engine/engine.h"

#include "base/check.h"
#include "engine/model_engine.h"
#include "engine/scripted_engine.h"

namespace millrace {

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options, TokenTable tokens,
                                             const OpenProgress& progress) {
  if (!options.script_file.empty()) return ScriptedEngine::open(options, std::move(tokens));
  return ModelEngine::open(options, std::move(tokens), progress);
}

Result<Completion> Engine::generate(const Request& request, const EventSink& on_event) {
  MR_CHECK_OP(request.num_choices, ==, 1);
  CompletionBuilder builder(request.sampling.prompt_logprobs.has_value());
  ASSIGN_OR_RETURN(const std::unique_ptr<RequestStream> stream, submit(request));
  while (const std::optional<RequestStream::Event> next = stream->next()) {
    builder.add(next->event);
    if (next->event.error) return *next->event.error;
    if (on_event && !on_event(next->event)) break;  // the end of the stream ends the request
  }
  return builder.take();
}

}  // namespace millrace
