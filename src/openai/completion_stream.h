#pragma once

// A streamed answer of chat completions or completions as server-sent events.

#include <cstdint>
#include <string>
#include <vector>

#include "openai/completion_request.h"
#include "openai/completion_response.h"
#include "openai/response_parts.h"
#include "openai/token_writer.h"

namespace millrace::openai {

// Appends what an event of a choice gives the client to see: `data: {...}` with an empty line
// behind it, once for each kind of text in a row. A step that settles no text and ends nothing
// gives none; its tokens and log-probabilities come with the next one of the choice.
//
// What all events of a choice add up to is what the answer of the same request says that is not
// streamed.
class CompletionStream {
 public:
  // Request, prompts and the context's tokenizer must outlive it.
  CompletionStream(const CompletionRequest& request, const std::vector<Prompt>& prompts,
                   ResponseContext context);

  // `answer`: of the event's choice, the event included.
  void add(size_t prompt_idx, const AnswerEvent& event, const Answer& answer, std::string& out);

  // What comes behind the last event: the usage, if asked for, and the end. Requires: every choice
  // has ended.
  void finish(std::string& out) const;
  // Instead: something went wrong.
  static void fail(const ApiError& error, std::string& out);

  Usage usage() const;

 private:
  struct Choice {
    bool has_begun = false;
    std::vector<int32_t> token_ids;        // that no event has shown
    std::vector<TokenLogprobs> logprobs;   // of those, if asked for
    std::vector<TokenLogprobs> prompt_logprobs;  // with echo; likewise
    int64_t num_output_tokens = 0, num_reasoning_tokens = 0;
    int64_t text_offset = 0;
  };

  struct ChunkKind {
    bool is_first = false;      // of the choice: has the prompt's ids, if they are asked for
    bool is_last = false;       // has its finish reason
    bool shows_prompt = false;  // in front of the text
  };

  void add_chat(int64_t index, const AnswerEvent& event, const Answer& answer, std::string& out);
  void add_text(size_t prompt_idx, int64_t index, const AnswerEvent& event, const Answer& answer,
                std::string& out);
  void begin_chunk(int64_t index);
  // Everything behind the delta or the text.
  void end_chunk(size_t prompt_idx, Choice& choice, const AnswerEvent& event, const Answer& answer,
                 ChunkKind kind, std::string& out);
  void write_running_usage();
  void write_logprobs(size_t prompt_idx, Choice& choice, bool shows_prompt);

  const CompletionRequest& request_;
  const std::vector<Prompt>& prompts_;
  const ResponseContext context_;
  const TokenWriter tokens_;
  const int64_t num_prompt_tokens_;
  std::vector<Choice> choices_;  // those of the first prompt come first
  JsonWriter head_;  // of every event, up to the first of its choices
  mutable JsonWriter json_;
};

}  // namespace millrace::openai
