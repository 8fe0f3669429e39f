#include "openai/completion_stream.h"

#include <algorithm>
#include <utility>

namespace millrace::openai {
namespace {

void write_event(const JsonWriter& json, std::string& out) {
  out += "data: ";
  out += json.text();
  out += "\n\n";
}

}  // namespace

CompletionStream::CompletionStream(const CompletionRequest& request,
                                   const std::vector<Prompt>& prompts, ResponseContext context)
    : request_(request),
      prompts_(prompts),
      context_(std::move(context)),
      tokens_(request, *context_.tokenizer),
      num_prompt_tokens_(num_tokens(prompts)),
      choices_(prompts.size() * size_t(request.sampling.num_choices)) {
  write_head(request_.endpoint, /*is_chunk=*/true, context_, head_);
  head_.key("choices").begin_array();
}

void CompletionStream::add(size_t prompt_idx, const AnswerEvent& event, const Answer& answer,
                           std::string& out) {
  const int64_t index = int64_t(prompt_idx) * request_.sampling.num_choices + event.choice_idx;
  Choice& choice = choices_[size_t(index)];
  const StreamEvent& step = event.step;
  if (request_.echo && request_.sampling.params.logprobs) {
    choice.prompt_logprobs.insert(choice.prompt_logprobs.end(), step.prompt_logprobs.begin(),
                                  step.prompt_logprobs.end());
  }
  if (step.token_id) {
    ++choice.num_output_tokens;
    if (request_.return_token_ids) choice.token_ids.push_back(*step.token_id);
  }
  if (step.logprobs) choice.logprobs.push_back(*step.logprobs);
  choice.num_reasoning_tokens = answer.num_reasoning_tokens;
  if (!step.token_id && !step.finish_reason) return;
  if (request_.endpoint == Endpoint::kChatCompletions) {
    add_chat(index, event, answer, out);
  } else {
    add_text(prompt_idx, index, event, answer, out);
  }
}

void CompletionStream::add_chat(int64_t index, const AnswerEvent& event, const Answer& answer,
                                std::string& out) {
  Choice& choice = choices_[size_t(index)];
  const std::vector<ReplyEvent>& parts = event.reply;
  const bool is_last = event.step.finish_reason.has_value();
  const auto is_shown = [&](const ReplyEvent& part) {
    return part.kind != ReplyEvent::Kind::kReasoning || request_.include_reasoning;
  };
  const bool has_text = std::any_of(parts.begin(), parts.end(), is_shown);
  if (!has_text && !is_last) return;

  // The role comes with the first token, never earlier: clients take it for the first token's time.
  if (!choice.has_begun) {
    choice.has_begun = true;
    begin_chunk(index);
    json_.key("delta").begin_object().member("role", "assistant").member("content", "");
    json_.end_object().key("logprobs").null().key("finish_reason").null().end_object().end_array();
    write_running_usage();
    if (request_.return_token_ids) json_.member("prompt_token_ids", prompts_[0].token_ids);
    write_event(json_.end_object(), out);
  }
  for (size_t i = 0; i < parts.size();) {
    const ReplyEvent& part = parts[i];
    if (!is_shown(part)) {
      ++i;
      continue;
    }
    // Pieces of one kind that follow each other are one event.
    std::string text = part.text;
    const bool can_grow = part.kind != ReplyEvent::Kind::kToolCall;
    const auto continues = [&](const ReplyEvent& next) {
      return can_grow && next.kind == part.kind && next.call_idx == part.call_idx;
    };
    for (++i; i < parts.size() && continues(parts[i]); ++i) text += parts[i].text;
    begin_chunk(index);
    json_.key("delta").begin_object();
    switch (part.kind) {
      case ReplyEvent::Kind::kReasoning:
        json_.member("reasoning_content", text).member("reasoning", text);
        break;
      case ReplyEvent::Kind::kContent:
        json_.member("content", text);
        break;
      case ReplyEvent::Kind::kToolCall:
        json_.key("tool_calls").begin_array().begin_object().member("index", part.call_idx);
        json_.member("id", call_id(context_, index, size_t(part.call_idx)));
        json_.member("type", "function").key("function").begin_object().member("name", text);
        json_.member("arguments", "").end_object().end_object().end_array();
        break;
      case ReplyEvent::Kind::kArguments:
        json_.key("tool_calls").begin_array().begin_object().member("index", part.call_idx);
        json_.key("function").begin_object().member("arguments", text).end_object();
        json_.end_object().end_array();
        break;
    }
    json_.end_object();
    while (i < parts.size() && !is_shown(parts[i])) ++i;
    end_chunk(0, choice, event, answer, {.is_last = is_last && i == parts.size()}, out);
  }
  if (!is_last || has_text) return;
  begin_chunk(index);
  json_.key("delta").begin_object().end_object();
  end_chunk(0, choice, event, answer, {.is_last = true}, out);
}

void CompletionStream::add_text(size_t prompt_idx, int64_t index, const AnswerEvent& event,
                                const Answer& answer, std::string& out) {
  Choice& choice = choices_[size_t(index)];
  const bool is_last = event.step.finish_reason.has_value();
  if (request_.endpoint == Endpoint::kGenerate) {  // every token is there to be seen
    begin_chunk(index);
    end_chunk(prompt_idx, choice, event, answer, {.is_last = is_last}, out);
    return;
  }
  if (event.text.empty() && !is_last) return;
  const bool is_first = !std::exchange(choice.has_begun, true);
  const bool shows_prompt = request_.echo && is_first;
  begin_chunk(index);
  json_.member("text", shows_prompt
                           ? tokens_.shown_text(prompts_[prompt_idx].token_ids) + event.text
                           : event.text);
  end_chunk(prompt_idx, choice, event, answer, {is_first, is_last, shows_prompt}, out);
}

void CompletionStream::begin_chunk(int64_t index) {
  json_ = head_;
  json_.begin_object().member("index", index);
}

void CompletionStream::write_logprobs(size_t prompt_idx, Choice& choice, bool shows_prompt) {
  json_.key("logprobs");
  if (!request_.sampling.params.logprobs || (choice.logprobs.empty() && !shows_prompt)) {
    json_.null();
    return;
  }
  if (request_.endpoint != Endpoint::kCompletions) {
    json_.begin_object().key("content").begin_array();
    tokens_.chat_logprobs(choice.logprobs, json_);
    json_.end_array().end_object();
  } else {
    std::vector<TokenWriter::TextToken> tokens;
    if (shows_prompt) {
      const std::vector<int32_t>& ids = prompts_[prompt_idx].token_ids;
      for (size_t i = 0; i < ids.size(); ++i) {
        // The first choice alone brings them; nothing comes before the very first token.
        const auto& logprobs = choices_[prompt_idx * size_t(request_.sampling.num_choices)]
                                   .prompt_logprobs;
        tokens.push_back({ids[i], 0 < i && i <= logprobs.size() ? &logprobs[i - 1] : nullptr});
      }
    }
    for (const TokenLogprobs& logprobs : choice.logprobs) {
      tokens.push_back({logprobs.token.token_id, &logprobs});
    }
    tokens_.text_logprobs(tokens, choice.text_offset, json_);
  }
  choice.logprobs.clear();
}

void CompletionStream::end_chunk(size_t prompt_idx, Choice& choice, const AnswerEvent& event,
                                 const Answer& answer, ChunkKind kind, std::string& out) {
  write_logprobs(prompt_idx, choice, kind.shows_prompt);
  if (kind.is_last) {
    write_finish(answer.finish_reason, event.step.stop_reason, json_);
  } else {
    json_.key("finish_reason").null().key("stop_reason").null();
  }
  if (request_.return_token_ids) {
    json_.member("token_ids", choice.token_ids);
    choice.token_ids.clear();
    if (kind.is_first) {
      json_.member("prompt_token_ids", prompts_[prompt_idx].token_ids);
    }
  }
  json_.end_object().end_array();
  write_running_usage();
  write_event(json_.end_object(), out);
}

void CompletionStream::write_running_usage() {
  if (request_.continuous_usage_stats) {
    json_.key("usage");
    write_usage(usage(), json_);
  } else if (request_.include_usage) {
    json_.key("usage").null();
  }
}

Usage CompletionStream::usage() const {
  Usage usage{num_prompt_tokens_, 0, 0};
  for (const Choice& choice : choices_) {
    usage.num_output_tokens += choice.num_output_tokens;
    usage.num_reasoning_tokens += choice.num_reasoning_tokens;
  }
  return usage;
}

void CompletionStream::finish(std::string& out) const {
  if (request_.include_usage) {
    json_ = head_;
    json_.end_array().key("usage");
    write_usage(usage(), json_);
    json_.member("system_fingerprint", context_.system_fingerprint);
    write_event(json_.end_object(), out);
  }
  out += "data: [DONE]\n\n";
}

void CompletionStream::fail(const ApiError& error, std::string& out) {
  out += "data: " + error_body(error) + "\n\ndata: [DONE]\n\n";
}

}  // namespace millrace::openai
