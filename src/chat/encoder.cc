#include "chat/encoder.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/format.h"
#include "chat/wire_text.h"

namespace millrace {
namespace {

class PromptWriter {
 public:
  // One control token.
  void control(std::string_view token) { prompt_.segments.push_back({std::string(token), true}); }

  // Plain text: a client's, or our own without control tokens.
  void text(std::string_view text) {
    if (text.empty()) return;
    if (prompt_.segments.empty() || prompt_.segments.back().is_control)
      prompt_.segments.emplace_back();
    prompt_.segments.back().text += text;
  }

  // The encoder's own markup, in which control tokens count.
  void markup(std::string_view markup) {
    while (!markup.empty()) {
      std::string_view first;
      size_t where = markup.size();
      for (const std::string_view token : {wire::kDsml, wire::kThink, wire::kEndThink}) {
        if (const size_t found = markup.find(token); found < where) {
          where = found;
          first = token;
        }
      }
      text(markup.substr(0, where));
      if (first.empty()) return;
      control(first);
      markup.remove_prefix(where + first.size());
    }
  }

  void image(const std::string& source) {
    control(wire::kImage);
    prompt_.images.push_back(source);
  }

  void content(const std::vector<Part>& parts) {
    bool is_first = true;
    for (const Part& part : parts) {
      if (!is_first) text("\n\n");
      is_first = false;
      part.kind == Part::Kind::kImage ? image(part.text) : text(part.text);
    }
  }

  EncodedPrompt finish(ReplyStart start) {
    prompt_.reply_start = start;
    return std::move(prompt_);
  }

 private:
  EncodedPrompt prompt_;
};

// One turn of the prompt. User and tool messages that follow each other share a user turn.
struct Turn {
  Role role;             // never kTool
  const Message* message;  // what the turn's task, calls and system text come from
  const std::vector<Tool>* tools;
  const std::optional<std::string>* response_format;
  std::vector<const Message*> blocks = {};  // of a user turn: texts and tool results
};

// The tool results of a user turn follow the order of the calls they answer. Texts keep their
// places. An unknown id counts as the first call.
void order_tool_results(Turn& turn, const std::vector<ToolCall>& calls) {
  std::unordered_map<std::string_view, size_t> position;
  for (size_t i = 0; i < calls.size(); ++i)
    if (!calls[i].id.empty()) position[calls[i].id] = i;
  const auto position_of = [&](const Message* result) {
    const auto it = position.find(result->tool_call_id);
    return it == position.end() ? 0 : it->second;
  };
  std::vector<const Message*> results;
  for (const Message* block : turn.blocks)
    if (block->role == Role::kTool) results.push_back(block);
  std::stable_sort(results.begin(), results.end(), [&](const Message* a, const Message* b) {
    return position_of(a) < position_of(b);
  });
  auto next = results.begin();
  for (const Message*& block : turn.blocks)
    if (block->role == Role::kTool) block = *next++;
}

// `plain` is a message without text and extras: what owns a turn opened by a tool result.
std::vector<Turn> fold_turns(const std::vector<Message>& messages, const Message& plain) {
  std::vector<Turn> turns;
  for (const Message& message : messages) {
    const bool is_tool = message.role == Role::kTool;
    if (!is_tool && message.role != Role::kUser) {
      turns.push_back({message.role, &message, &message.tools, &message.response_format});
      continue;
    }
    // A turn with a task is complete for further text; a result may still join it.
    const bool joins = !turns.empty() && turns.back().role == Role::kUser &&
                       (is_tool || turns.back().message->task.empty());
    if (!joins) {
      const Message& owner = is_tool ? plain : message;
      turns.push_back({Role::kUser, &owner, &owner.tools, &owner.response_format});
    }
    if (is_tool || !message.content.empty()) turns.back().blocks.push_back(&message);
  }

  const std::vector<ToolCall>* latest_calls = nullptr;
  for (Turn& turn : turns) {
    if (turn.role == Role::kAssistant && !turn.message->tool_calls.empty())
      latest_calls = &turn.message->tool_calls;
    if (turn.role == Role::kUser && latest_calls != nullptr)
      order_tool_results(turn, *latest_calls);
  }
  return turns;
}

class Encoder {
 public:
  explicit Encoder(const ChatRequest& request) : request_(request) {
    if (request.tool_choice != ToolChoice::kNone) {
      for (const Tool& tool : request.tools)
        if (!request.chosen_tool || tool.name == *request.chosen_tool) tools_.push_back(tool);
    }
    turns_ = fold_turns(request.messages, plain_);
    if (!tools_.empty() || request.response_format) attach_to_leading_system();

    const bool has_tools = std::any_of(turns_.begin(), turns_.end(),
                                       [](const Turn& turn) { return !turn.tools->empty(); });
    drops_reasoning_ = request.drop_thinking && !has_tools;
    for (size_t i = 0; i < turns_.size(); ++i)
      if (is_query(i)) last_query_ = ptrdiff_t(i);
  }

  Result<EncodedPrompt> encode() {
    out_.control(wire::kBos);
    head();
    for (size_t i = 0; i < turns_.size(); ++i) {
      body(i);
      RETURN_IF_ERROR(header_after(i));
    }
    if (awaits_answer_ && request_.tool_choice == ToolChoice::kRequired) {
      out_.text("\n\n");
      out_.markup(wire::kBlockOpen);
      out_.text("\n");
      start_ = ReplyStart::kToolCalls;
    }
    return out_.finish(start_);
  }

 private:
  void attach_to_leading_system() {
    if (turns_.front().role != Role::kSystem) {
      turns_.insert(turns_.begin(), {Role::kSystem, &plain_, &plain_.tools,
                                     &plain_.response_format});
    }
    if (!tools_.empty()) turns_.front().tools = &tools_;
    if (request_.response_format) turns_.front().response_format = &request_.response_format;
  }

  // A turn that the model answers.
  bool is_query(size_t i) const {
    return turns_[i].role == Role::kUser || (turns_[i].role == Role::kSystem && i > 0);
  }

  void head() {
    if (request_.thinking || turns_.front().role == Role::kSystem) out_.control(wire::kSystem);
    if (!request_.thinking) return;
    out_.text(wire::kEffortBefore);
    out_.text(std::to_string(request_.reasoning_effort));
    out_.text(wire::kEffortAfter);
  }

  void body(size_t i) {
    const Turn& turn = turns_[i];
    if (turn.role != Role::kLatestReminder) {  // a reminder leaves an open header open
      start_ = ReplyStart::kContent;
      awaits_answer_ = false;
    }
    switch (turn.role) {
      case Role::kSystem:
        if (i > 0) out_.control(wire::kSystem);
        return system_text(turn);
      case Role::kLatestReminder:
        out_.control(wire::kLatestReminder);
        return out_.content(turn.message->content);
      case Role::kAssistant:
        return assistant_text(i);
      case Role::kUser:
      case Role::kTool:
        out_.control(wire::kUser);
        return user_text(turn);
    }
  }

  void system_text(const Turn& turn) {
    out_.content(turn.message->content);
    if (!turn.tools->empty()) {
      out_.text("\n\n");
      out_.markup(wire::kToolsBefore);
      bool is_first = true;
      for (const Tool& tool : *turn.tools) {
        if (!is_first) out_.text("\n");
        is_first = false;
        out_.text(tool.schema);
      }
      out_.markup(wire::kToolsAfter);
    }
    if (turn.response_format->has_value()) {
      out_.text("\n\n");
      out_.text(wire::kResponseFormat);
      out_.text(**turn.response_format);
    }
  }

  void user_text(const Turn& turn) {
    bool is_first = true;
    for (const Message* block : turn.blocks) {
      if (!is_first) out_.text("\n\n");
      is_first = false;
      const bool is_result = block->role == Role::kTool;
      if (is_result) out_.text(wire::kToolResultOpen);
      out_.content(block->content);
      if (is_result) out_.text(wire::kToolResultClose);
    }
  }

  void assistant_text(size_t i) {
    const Message& message = *turns_[i].message;
    const bool is_continued = request_.continue_final_message && i + 1 == turns_.size();
    const bool follows_task = i > 0 && !turns_[i - 1].message->task.empty();
    const bool shows_reasoning = request_.thinking && !follows_task &&
                                 (!drops_reasoning_ || ptrdiff_t(i) > last_query_);
    if (is_continued) start_ = ReplyStart::kContentContinued;
    if (shows_reasoning) {
      out_.text(message.reasoning);
      const bool has_answer =
          !message.tool_calls.empty() ||
          std::any_of(message.content.begin(), message.content.end(), [](const Part& part) {
            return part.kind == Part::Kind::kImage || !part.text.empty();
          });
      if (is_continued && !message.reasoning.empty() && !has_answer) {
        start_ = ReplyStart::kReasoningContinued;
        return;
      }
      out_.control(wire::kEndThink);
    }
    out_.content(message.content);
    if (!message.tool_calls.empty()) tool_calls(message.tool_calls);
    if (!is_continued) out_.control(wire::kEos);
  }

  void tool_calls(const std::vector<ToolCall>& calls) {
    out_.text("\n\n");
    out_.markup(wire::kBlockOpen);
    out_.text("\n");
    for (const ToolCall& call : calls) {
      out_.markup(wire::kInvokeOpen);
      out_.text(call.name);
      out_.text("\">\n");
      for (const Argument& argument : call.arguments) {
        out_.markup(wire::kParameterOpen);
        out_.text(argument.key);
        out_.text(argument.is_text ? wire::kParameterText : wire::kParameterJson);
        out_.text(argument.value);
        out_.markup(wire::kParameterClose);
        out_.text("\n");
      }
      if (call.arguments.empty()) out_.text("\n");
      out_.markup(wire::kInvokeClose);
      out_.text("\n");
    }
    out_.markup(wire::kBlockClose);
  }

  // What stands between turn i and a reply, given in the request or still to come.
  Status header_after(size_t i) {
    const bool is_last = i + 1 == turns_.size();
    if (is_last && (!request_.add_generation_prompt || request_.continue_final_message)) return {};
    if (!is_last && turns_[i + 1].role != Role::kAssistant &&
        turns_[i + 1].role != Role::kLatestReminder)
      return {};

    const Turn& turn = turns_[i];
    const std::string& name = turn.message->task;
    if (!name.empty()) {
      const auto task = std::find_if(std::begin(wire::kTasks), std::end(wire::kTasks),
                                     [&](const wire::Task& known) { return known.name == name; });
      if (task == std::end(wire::kTasks))
        return Error{Code::kInvalidArgument, format("unknown task \"", name, '"')};
      if (name == "action") {
        out_.control(wire::kAssistant);
        out_.control(request_.thinking ? wire::kThink : wire::kEndThink);
      }
      out_.control(task->token);
      return {};
    }
    if (is_query(i) || (is_last && turn.role != Role::kLatestReminder)) {
      const bool thinks = request_.thinking && (!drops_reasoning_ || ptrdiff_t(i) >= last_query_);
      out_.control(wire::kAssistant);
      out_.control(thinks ? wire::kThink : wire::kEndThink);
      start_ = thinks ? ReplyStart::kReasoning : ReplyStart::kContent;
      awaits_answer_ = !thinks;
    }
    return {};
  }

  const ChatRequest& request_;
  const Message plain_;  // without text and extras, for turns that no message owns
  std::vector<Tool> tools_;  // those of the request that the model may see
  std::vector<Turn> turns_;
  bool drops_reasoning_ = false;
  ptrdiff_t last_query_ = -1;

  PromptWriter out_;
  ReplyStart start_ = ReplyStart::kContent;
  bool awaits_answer_ = false;  // the last thing written, reminders aside, opened an answer
};

Error invalid(std::string message) { return Error{Code::kInvalidArgument, std::move(message)}; }

}  // namespace

std::string EncodedPrompt::text() const {
  std::string all;
  for (const PromptSegment& segment : segments) all += segment.text;
  return all;
}

Result<EncodedPrompt> encode_prompt(const ChatRequest& request) {
  if (request.messages.empty()) return invalid("messages: found none, expected at least one");
  if (request.continue_final_message && request.messages.back().role != Role::kAssistant)
    return invalid("continue_final_message needs an assistant message at the end of messages");
  if (request.reasoning_effort < 1 || 100 < request.reasoning_effort)
    return invalid(format("reasoning_effort ", request.reasoning_effort, ", expected 1 to 100"));
  return Encoder(request).encode();
}

}  // namespace millrace
