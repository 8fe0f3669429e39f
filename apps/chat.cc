#include <iostream>
#include <optional>

#include "base/format.h"
#include "chat/request_parser.h"
#include "commands.h"
#include "console.h"
#include "llm/llm.h"
#include "model_flags.h"
#include "stats.h"
#include "sys/file.h"

namespace millrace {
namespace {

std::string help_text() {
  return format(
      "/help            this list\n"
      "/clear           forget the conversation; also /reset\n"
      "/system TEXT     set the system prompt and start anew; without TEXT: none\n"
      "/think on|off    think before answering, or not\n"
      "/effort N        how thoroughly: ",
      effort_names(),
      "\n"
      "/temp X          temperature, 0 to 2; 0 is the likeliest token, always\n"
      "/seed N          repeat the same random choices; without N: new ones every time\n"
      "/retry           answer the last message again\n"
      "/exit            leave; so do Ctrl-D, and Ctrl-C twice\n"
      "Ctrl-C stops an answer. For line editing and history run it under rlwrap.\n");
}

// A list of tools, or an object with one, as in a chat request.
Result<std::vector<Tool>> read_tools(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file));
  std::string request = text;
  if (const size_t first = text.find_first_not_of(" \t\r\n");
      first != text.npos && text[first] == '[') {
    request =
        format("{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"tools\": ", text, "}");
  }
  Result<ChatRequest> parsed = parse_chat_request(request);
  if (!parsed.has_value()) {
    return Error{parsed.error().code, format(file, ": ", parsed.error().message)};
  }
  return std::move(parsed.value().tools);
}

Message text_message(Role role, std::string text) {
  Message message;
  message.role = role;
  message.content.push_back({Part::Kind::kText, std::move(text)});
  return message;
}

// A conversation on the terminal, or from a pipe: one line, one turn.
class Chat {
 public:
  Chat(Llm& llm, SamplingParams sampling, const ChatOptions& options)
      : llm_(llm), sampling_(std::move(sampling)), options_(options) {}

  Status prepare() {
    RETURN_IF_ERROR(apply(options_.thinking, request_));
    if (!options_.tools_file.empty()) {
      ASSIGN_OR_RETURN(request_.tools, read_tools(options_.tools_file));
    }
    system_ = options_.system;
    reset();
    return {};
  }

  int run() {
    if (is_interactive_) print("/help lists the commands. Ctrl-C stops an answer.\n");
    bool warned = false;  // that another Ctrl-C leaves
    std::string line;
    while (true) {
      if (is_interactive_) print(prompt());
      switch (lines_.read(line)) {
        case LineReader::Event::kEnd:
          if (is_interactive_) print("\n");
          return kExitOk;
        case LineReader::Event::kInterrupt:
          if (!is_interactive_) return kExitInterrupted;
          if (warned) return print("\n"), kExitOk;
          warned = true;
          print("\nCtrl-C once more, or /exit, to leave.\n");
          continue;
        case LineReader::Event::kLine: break;
      }
      warned = false;
      if (line.empty()) continue;
      const Result<bool> goes_on = take(line);
      if (!goes_on.has_value()) {
        fail(goes_on.error());
        if (!is_interactive_) return kExitError;
      } else if (was_interrupted_ && !is_interactive_) {
        return kExitInterrupted;
      } else if (!goes_on.value()) {
        return kExitOk;
      }
    }
  }

 private:
  std::string prompt() const {
    if (waiting_calls_.empty()) return "> ";
    return format("result of ", waiting_calls_.front().name, "> ");
  }

  void reset() {
    request_.messages.clear();
    waiting_calls_.clear();
    if (!system_.empty()) request_.messages.push_back(text_message(Role::kSystem, system_));
  }

  // False: leave.
  Result<bool> take(const std::string& line) {
    RETURN_IF_ERROR(check_utf8("line", line));
    return line[0] == '/' ? command(line) : say(line);
  }

  Result<bool> command(const std::string& line) {
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, blank);
    const size_t begin = std::min(line.find_first_not_of(' ', blank), line.size());
    const std::string argument = line.substr(begin);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") return print(help_text()), true;
    if (name == "/clear" || name == "/reset") return reset(), true;
    if (name == "/system") {
      system_ = argument;
      reset();
      return true;
    }
    if (name == "/retry") return retry();
    RETURN_IF_ERROR(set(name, argument));
    return true;
  }

  Status set(const std::string& name, const std::string& argument) {
    if (name == "/think") {
      if (argument != "on" && argument != "off") return bad_argument(name, argument, "on or off");
      request_.thinking = argument == "on";
    } else if (name == "/effort") {
      const Result<int> effort = parse_effort(argument);
      if (!effort.has_value()) return bad_argument(name, argument, effort_names());
      request_.reasoning_effort = effort.value();
    } else if (name == "/temp") {
      SamplingParams changed = sampling_;
      if (!parse_number(argument, changed.temperature))
        return bad_argument(name, argument, "0 to 2");
      RETURN_IF_ERROR(validate(changed, llm_.engine().vocab_size()));
      sampling_ = std::move(changed);
    } else if (name == "/seed") {
      uint64_t seed = 0;
      if (argument.empty()) {
        sampling_.seed.reset();
      } else if (parse_seed(argument, seed)) {
        sampling_.seed = seed;
      } else {
        return bad_argument(name, argument, format(kSeedRange, ", or nothing"));
      }
    } else {
      return Error{Code::kInvalidArgument, format(name, ": no such command; /help lists them")};
    }
    return {};
  }

  static Error bad_argument(const std::string& name, const std::string& found,
                            std::string_view expected) {
    return {Code::kInvalidArgument, format(name, ": found \"", found, "\", expected ", expected)};
  }

  Result<bool> say(const std::string& line) {
    num_retries_ = 0;
    if (waiting_calls_.empty()) {
      request_.messages.push_back(text_message(Role::kUser, line));
      return answer();
    }
    Message result = text_message(Role::kTool, line);
    result.tool_call_id = waiting_calls_.front().id;
    request_.messages.push_back(std::move(result));
    waiting_calls_.erase(waiting_calls_.begin());
    if (waiting_calls_.empty()) return answer();
    return true;
  }

  // Each retry draws its own randomness, also under a fixed seed.
  Result<bool> retry() {
    std::vector<Message>& messages = request_.messages;
    while (!messages.empty() && messages.back().role == Role::kAssistant) messages.pop_back();
    waiting_calls_.clear();
    if (messages.empty() || messages.back().role == Role::kSystem) {
      return Error{Code::kInvalidArgument, "/retry: there is nothing to answer yet"};
    }
    ++num_retries_;
    return answer();
  }

  Result<bool> answer() {
    Result<Answer> answer = generate();
    if (!answer.has_value()) {
      // What could not be answered would stand in the way of the next message.
      while (!request_.messages.empty() && request_.messages.back().role != Role::kAssistant &&
             request_.messages.back().role != Role::kSystem) {
        request_.messages.pop_back();
      }
      return answer.error();
    }
    if (options_.stats) std::cerr << stats_line(answer.value()) << "\n";
    was_interrupted_ = answer.value().completion.finish_reason == FinishReason::kAbort;
    return remember(answer.value());
  }

  Result<Answer> generate() {
    ASSIGN_OR_RETURN(const Prompt prompt, llm_.encode_chat(request_));
    ReplyPrinter printer(options_.fold);
    Interrupts::take();  // one that came while nothing was running
    AnswerRequest request{prompt, sampling_};
    request.choice_idx = num_retries_;
    return llm_.generate(std::move(request), [&](const AnswerEvent& event) {
      printer.print_events(event.reply);
      return !Interrupts::take();
    });
  }

  Result<bool> remember(const Answer& answer) {
    const Reply& reply = answer.reply;
    Message message = text_message(Role::kAssistant, reply.content);
    message.reasoning = reply.reasoning;
    // A call that was cut off is no call.
    const size_t num_calls = answer.finish_reason == "tool_calls" ? reply.tool_calls.size() : 0;
    for (size_t i = 0; i < num_calls; ++i) {
      ToolCall call;
      call.id = format("call_", request_.messages.size(), "_", i);
      call.name = reply.tool_calls[i].name;
      ASSIGN_OR_RETURN(call.arguments, parse_tool_arguments(reply.tool_calls[i].arguments));
      message.tool_calls.push_back(std::move(call));
    }
    waiting_calls_ = message.tool_calls;
    request_.messages.push_back(std::move(message));
    return true;
  }

  Llm& llm_;
  SamplingParams sampling_;
  const ChatOptions& options_;
  const bool is_interactive_ = stdin_is_terminal();
  LineReader lines_;
  std::string system_;
  ChatRequest request_;
  std::vector<ToolCall> waiting_calls_;  // whose results the next lines are
  int num_retries_ = 0;                  // of the last message
  bool was_interrupted_ = false;         // the last answer, by Ctrl-C
};

}  // namespace

int run_chat(const ChatOptions& options) {
  Result<std::unique_ptr<Llm>> llm = open_llm(options.model);
  if (!llm.has_value()) return fail(llm.error());
  Result<SamplingParams> sampling =
      make_sampling(options.sampling, llm.value()->default_sampling(), *llm.value());
  if (!sampling.has_value()) return fail_usage(sampling.error());
  Chat chat(*llm.value(), std::move(sampling.value()), options);
  const Status prepared = chat.prepare();
  if (!prepared.ok()) return fail(prepared.error());
  const Interrupts interrupts;
  return chat.run();
}

}  // namespace millrace
