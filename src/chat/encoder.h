#pragma once

// Chat messages to prompt, in the V4.1 encoding (system tokens, effort line, spaced tool tags).
//
// A prompt is a list of segments. A control segment is exactly one control token, written by the
// encoder. Every other segment is plain text and must be tokenized without looking for control
// tokens: what a client sends (content, tool results, arguments, names, schemas) stands only there,
// so it can never act as markup. Adjacent plain text forms one segment, because the tokenizer's
// result depends on the neighbours.

#include <string>
#include <vector>

#include "base/status.h"
#include "chat/messages.h"

namespace millrace {

struct PromptSegment {
  std::string text;
  bool is_control = false;
};

struct EncodedPrompt {
  std::vector<PromptSegment> segments;
  std::vector<std::string> images;  // sources, in the order of their placeholder tokens
  ReplyStart reply_start = ReplyStart::kContent;

  std::string text() const;  // all segments in a row
};

// With ToolChoice::kRequired and no thinking the prompt opens the block of tool calls itself. With
// thinking it cannot: the caller must constrain what follows the reasoning.
// Errors (kInvalidArgument): no messages, an unknown task, continue_final_message without a final
// assistant message, an effort outside 1..100.
Result<EncodedPrompt> encode_prompt(const ChatRequest& request);

}  // namespace millrace
