#include "chat/request_parser.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::string error_of(const std::string& json, const ChatParseOptions& options = {}) {
  const Result<ChatRequest> request = parse_chat_request(json, options);
  return request.has_value() ? "accepted" : request.error().message;
}

// `fields` of a request with one user message.
std::string with(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "q"}], )" + fields + "}";
}

std::string of_message(const std::string& fields) { return R"({"messages": [{)" + fields + "}]}"; }

TEST(RequestParser, NamesThePathWhatItFoundAndWhatItExpected) {
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "request: found an array of 0, expected an object"},
      {"{}", "messages: found nothing, expected a non-empty array"},
      {R"({"messages": "hi"})", R"(messages: found string "hi", expected a non-empty array)"},
      {R"({"messages": [5]})", "messages[0]: found number 5, expected an object"},
      {of_message(R"("content": "x")"),
       "messages[0].role: found nothing, expected system, developer, user, assistant, tool or "
       "latest_reminder"},
      {of_message(R"("role": "user", "content": 5)"),
       "messages[0].content: found number 5, expected a string or an array"},
      {of_message(R"("role": "user", "content": [{"type": "text", "text": "a"}, "b"])"),
       R"(messages[0].content[1]: found string "b", expected an object)"},
      {of_message(R"("role": "user", "content": [{"type": "text"}])"),
       "messages[0].content[0].text: found nothing, expected a string"},
      {of_message(R"("role": "tool", "content": [{"type": "audio"}])"),
       R"(messages[0].content[0].type: found string "audio", expected "text" or "image_url")"},
      {of_message(R"("role": "user", "content": [{"type": "image_url", "image_url": {}}])"),
       "messages[0].content[0].image_url.url: found nothing, expected the source of the image"},
      {of_message(R"("role": "system", "content": "a<｜deepseek_image｜>")"),
       "messages[0].content: text contains the image placeholder"},
      {of_message(R"("role": "assistant", "tool_calls": [{"id": 1}])"),
       "messages[0].tool_calls[0].id: found number 1, expected a string"},
      {of_message(R"("role": "assistant", "tool_calls": [{}])"),
       "messages[0].tool_calls[0].function: found nothing, expected an object"},
      {of_message(R"("role": "assistant", "tool_calls": [{"function": {"name": "f"}}])"),
       "messages[0].tool_calls[0].function.arguments: found nothing, expected the arguments"},
      {of_message(R"("role": "assistant", "tool_calls": [{"function": {"name": "f",
                     "arguments": "{\"x\": NaN}"}}])"),
       "messages[0].tool_calls[0].function.arguments: number NaN is not finite as a double"},
      {of_message(R"("role": "assistant", "prefix": "yes")"),
       R"(messages[0].prefix: found string "yes", expected true or false)"},
      {R"({"messages": [{"role": "assistant", "prefix": true}, {"role": "user"}]})",
       "messages[0].prefix: only the last message can be continued"},
      {with(R"("continue_final_message": true)"),
       "continue_final_message: needs an assistant message at the end of messages"},
      {R"({"messages": [{"role": "assistant"}], "continue_final_message": true,
           "add_generation_prompt": true})",
       "add_generation_prompt: true contradicts the continuation of the last message"},
      {with(R"("thinking": "on")"), R"(thinking: found string "on", expected true or false)"},
      {with(R"("thinking": {"type": "auto"})"),
       R"(thinking.type: found string "auto", expected enabled or disabled)"},
      {with(R"("reasoning_effort": 101)"),
       "reasoning_effort: found number 101, expected 1 to 100"},
      {with(R"("reasoning_effort": 99999999999999999999)"),
       "reasoning_effort: found number 99999999999999999999, expected 1 to 100"},
      {with(R"("reasoning_effort": 75.0)"),
       "reasoning_effort: found number 75.0, expected a name or an integer from 1 to 100"},
      {with(R"("reasoning_effort": "hard")"),
       "reasoning_effort: found string \"hard\", expected none, minimal, low, medium, high, xhigh, "
       "max, ultra or an integer from 1 to 100"},
      {with(R"("tools": {})"), "tools: found an object, expected an array"},
      {with(R"("tools": [{"type": "web_search"}])"),
       R"(tools[0].type: found string "web_search", expected "function")"},
      {with(R"("tools": [{"function": {}}])"),
       "tools[0].function.name: found nothing, expected a name"},
      {with(R"("tools": [{"function": {"name": "a::b::c"}}])"),
       R"(tools[0].function.name: found string "a::b::c", expected NAME or NAMESPACE::NAME)"},
      {with(R"("tools": [{"namespace": "a::b", "function": {"name": "c"}}])"),
       R"(tools[0].namespace: found string "a::b", expected a namespace without "::")"},
      {with(R"("tools": [{"namespace": "a", "function": {"name": "b::c"}}])"),
       R"(tools[0].function.name: its namespace "b" differs from the given namespace "a")"},
      {with(R"("tools": [{"function": {"name": "f", "parameters": {"maximum": 1e400}}}])"),
       "tools[0].function: number 1e400 is not finite as a double"},
      {with(R"("tools": [{"function": {"name": "f", "parameters": 5}}])"),
       "tools[0].function.parameters: found number 5, expected an object"},
      {with(R"("tools": [{"function": {"name": "f", "description": ["a"]}}])"),
       "tools[0].function.description: found an array of 1, expected a string"},
      {with(R"("tool_choice": "required")"), R"(tool_choice: "required" needs tools)"},
      {with(R"("tool_choice": "any")"),
       R"(tool_choice: found string "any", expected none, auto, required or )"
       R"({"type": "function", "function": {"name"}})"},
      {with(R"("tools": [{"function": {"name": "f"}}],
               "tool_choice": {"type": "function", "function": {"name": "g"}})"),
       R"(tool_choice.function.name: found string "g", expected the name of one of the tools)"},
      {with(R"("response_format": {"type": "xml"})"),
       R"(response_format.type: found string "xml", expected text, json_object or json_schema)"},
      {with(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})"),
       "response_format.json_schema.schema: found nothing, expected an object"},
      {R"({"messages": [{"role": "system", "tools": [{"function": {"name": "f"}}]}],
           "tools": [{"function": {"name": "g"}}]})",
       "tools: given here and in messages[0].tools"},
      {R"({"messages": [{"role": "user", "content": "open]})",
       "JSON byte 49: found the end, expected '\"'"},
  };
  for (const auto& [json, want] : cases) EXPECT_EQ(error_of(json), want) << json;
}

TEST(RequestParser, RefusesAKeyThatAppearsTwiceWhereItWouldHaveToChoose) {
  const std::pair<std::string, std::string> cases[] = {
      {with(R"("messages": [])"), "messages"},
      {with(R"("temperature": 1, "temperature": 0)"), "temperature"},
      {of_message(R"("role": "user", "role": "system")"), "messages[0].role"},
      {of_message(R"("role": "user", "content": [{"type": "text", "text": "a", "text": "b"}])"),
       "messages[0].content[0].text"},
      {of_message(R"("role": "user", "content": [{"type": "image_url",
                     "image_url": {"url": "a", "url": "b"}}])"),
       "messages[0].content[0].image_url.url"},
      {of_message(R"("role": "assistant", "tool_calls": [{"id": "a", "id": "b"}])"),
       "messages[0].tool_calls[0].id"},
      {of_message(R"("role": "assistant", "tool_calls": [{"function":
                     {"name": "f", "arguments": {}, "arguments": {}}}])"),
       "messages[0].tool_calls[0].function.arguments"},
      {with(R"("tools": [{"function": {"name": "f"}, "function": {"name": "g"}}])"),
       "tools[0].function"},
      {with(R"("tools": [{"function": {"name": "f", "name": "g"}}])"), "tools[0].function.name"},
      {with(R"("tools": [{"namespace": {"name": "a", "name": "b"}, "function": {"name": "f"}}])"),
       "tools[0].namespace.name"},
      {with(R"("tools": [{"function": {"name": "f"}}],
               "tool_choice": {"function": {"name": "f"}, "function": {"name": "f"}})"),
       "tool_choice.function"},
      {with(R"("thinking": {"type": "enabled", "type": "disabled"})"), "thinking.type"},
      {with(R"("response_format": {"type": "text", "type": "json_object"})"),
       "response_format.type"},
      {with(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {},
               "schema": {}}})"),
       "response_format.json_schema.schema"},
  };
  for (const auto& [json, path] : cases)
    EXPECT_EQ(error_of(json), path + ": found twice, expected once") << json;
}

// The rules of the encoder that the model was trained with: first place, last value, and numbers
// as Python writes them.
TEST(RequestParser, RepeatsSchemasAndArgumentsAsTheEncoderDoes) {
  const Result<ChatRequest> result = parse_chat_request(R"({
      "tools": [{"function": {"name": "f", "strict": false, "parameters":
                 {"a": 1E5, "b": 1.0, "a": 12345678901234567890, "c": 1e5, "d": -0, "e": 0.10},
                 "strict": true}}],
      "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments":
        "{\"n\": 12345678901234567890123, \"x\": 1e5, \"y\": 1.0, \"n\": 1E400000e0}"}},
        {"function": {"name": "f", "arguments":
          {"n": 12345678901234567890123, "x": 1e5, "y": [1.0, 1e-7], "x": 2.50}}}]}]})");
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(result.value().tools[0].schema,
            R"({"name": "f", "strict": true, "parameters": {"a": 12345678901234567890, "b": 1.0, )"
            R"("c": 100000.0, "d": 0, "e": 0.1}})");
  const std::vector<ToolCall>& calls = result.value().messages[0].tool_calls;
  ASSERT_EQ(calls[0].arguments.size(), 1u);  // not JSON: kept as it is
  EXPECT_EQ(calls[0].arguments[0].key, "arguments");
  ASSERT_EQ(calls[1].arguments.size(), 3u);
  EXPECT_EQ(calls[1].arguments[0].value, "12345678901234567890123");
  EXPECT_EQ(calls[1].arguments[1].value, "2.5");
  EXPECT_EQ(calls[1].arguments[2].value, "[1.0, 1e-07]");
}

TEST(RequestParser, CutsLongStringsInMessagesBetweenCharacters) {
  const std::string name = std::string(39, 'x') + "\u00e9";
  EXPECT_EQ(error_of(with("\"thinking\": \"" + name + "\"")),
            "thinking: found string \"" + std::string(39, 'x') + "\"..., expected true or false");
}

TEST(RequestParser, HoldsTheLimitsInRequestsAndInArguments) {
  ChatParseOptions options;
  options.limits = {.max_bytes = 1000, .max_values = 100, .max_depth = 8};
  const auto with_arguments = [](const std::string& text) {
    return R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
               "arguments": ")" + text + "\"}}]}]}";
  };
  EXPECT_EQ(error_of(with_arguments("[[[[[[[[1]]]]]]]]"), options), "accepted");
  EXPECT_EQ(error_of(with_arguments("[[[[[[[[[1]]]]]]]]]"), options),
            "messages[0].tool_calls[0].function.arguments: JSON byte 8: more than 8 nested levels");
  EXPECT_EQ(error_of(std::string(1001, ' '), options), "JSON text: 1001 bytes, at most 1000");
  EXPECT_EQ(error_of("[[[[[[[[[1]]]]]]]]]", options), "JSON byte 8: more than 8 nested levels");
}

TEST(RequestParser, TakesEffortsFromItsTable) {
  ChatParseOptions options;
  options.efforts = {{"low", 25}, {"high", 50}, {"xhigh", 75}};
  options.default_effort = "xhigh";
  const auto effort = [&](const std::string& fields) {
    return parse_chat_request(with(fields), options).value().reasoning_effort;
  };
  EXPECT_EQ(effort(R"("reasoning_effort": "low")"), 25);
  EXPECT_EQ(effort(R"("reasoning_effort": null)"), 75);
  EXPECT_EQ(effort(R"("reasoning_effort": 3)"), 3);
  EXPECT_EQ(error_of(with(R"("reasoning_effort": "max")"), options).substr(0, 17),
            "reasoning_effort:");
}

TEST(RequestParser, ReadsWhatAClientUsuallySends) {
  const Result<ChatRequest> result = parse_chat_request(R"({
      "model": "m", "temperature": 0.5, "thinking": {"type": "enabled"}, "reasoning_effort": "max",
      "tools": [{"type": "function", "namespace": {"name": "fs", "description": "Files."},
                 "function": {"description": "Reads.", "name": "read", "strict": true}}],
      "messages": [
        {"role": "developer", "content": null, "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "look"},
                                     {"type": "image_url", "image_url": {"url": "data:1"}}]},
        {"role": "assistant", "content": null, "reasoning": "why", "tool_calls": [
          {"id": "c", "type": "function", "function": {"name": "fs::read",
            "arguments": "{\"path\": \"/a\", \"n\": 1.50}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"}]})");
  ASSERT_TRUE(result.has_value()) << result.error().message;
  const ChatRequest& request = result.value();
  EXPECT_TRUE(request.thinking);
  EXPECT_EQ(request.reasoning_effort, 100);
  ASSERT_EQ(request.tools.size(), 1u);
  EXPECT_EQ(request.tools[0].name, "fs::read");
  EXPECT_EQ(request.tools[0].schema,
            R"({"description": "Files.\nReads.", "name": "fs::read", "strict": true})");
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, Role::kSystem);
  EXPECT_EQ(request.messages[1].content[1].kind, Part::Kind::kImage);
  EXPECT_EQ(request.messages[1].content[1].text, "data:1");
  EXPECT_EQ(request.messages[2].reasoning, "why");
  const ToolCall& call = request.messages[2].tool_calls.at(0);
  EXPECT_EQ(call.name, "fs::read");
  EXPECT_EQ(call.arguments.at(0).value, "/a");
  EXPECT_TRUE(call.arguments.at(0).is_text);
  EXPECT_EQ(call.arguments.at(1).value, "1.5");
  EXPECT_FALSE(call.arguments.at(1).is_text);
  EXPECT_EQ(request.messages[3].tool_call_id, "c");
}

TEST(ToolArguments, WrapWhatIsNotAnObject) {
  for (const std::string text : {"", "not json", "[1, 2]", "5", "\"plain\"", "{\"a\": 1",
                                 "\"\\\"{}\\\"\"", "{\"a\": \"\\ud800\"}"}) {
    const Result<std::vector<Argument>> arguments = parse_tool_arguments(text);
    ASSERT_TRUE(arguments.has_value()) << text;
    ASSERT_EQ(arguments.value().size(), 1u) << text;
    EXPECT_EQ(arguments.value()[0].key, "arguments");
    EXPECT_EQ(arguments.value()[0].value, text);
    EXPECT_TRUE(arguments.value()[0].is_text);
  }
  EXPECT_TRUE(parse_tool_arguments(" {} ").value().empty());
  EXPECT_EQ(parse_tool_arguments(R"("{\"k\": null}")").value().at(0).value, "null");
}

}  // namespace
}  // namespace millrace
