#pragma once

// The exact byte strings the model was trained on. Nothing here can be reworded; a test holds the
// tools text against its published digest. The bar in the tokens is U+FF5C, the low bar U+2581.

#include <string_view>

namespace millrace::wire {

// Control tokens: each is one id of the tokenizer.
inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystem = "<｜System｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kImage = "<｜deepseek_image｜>";

// Classification heads: what `task` asks for, and the token that asks the model.
struct Task {
  std::string_view name;
  std::string_view token;
};
inline constexpr Task kTasks[] = {
    {"action", "<｜action｜>"}, {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
};

// Tool markup. The tags are ordinary text around the token kDsml.
inline constexpr std::string_view kBlockOpen = "<｜DSML｜ calls>";
inline constexpr std::string_view kBlockClose = "</｜DSML｜ calls>";
inline constexpr std::string_view kInvokeOpen = "<｜DSML｜ invoke name=\"";
inline constexpr std::string_view kInvokeClose = "</｜DSML｜ invoke>";
inline constexpr std::string_view kParameterOpen = "<｜DSML｜ parameter name=\"";
inline constexpr std::string_view kParameterText = "\" string=\"true\">";
inline constexpr std::string_view kParameterJson = "\" string=\"false\">";
inline constexpr std::string_view kParameterClose = "</｜DSML｜ parameter>";

inline constexpr std::string_view kToolResultOpen = "<tool_result>";
inline constexpr std::string_view kToolResultClose = "</tool_result>";

inline constexpr std::string_view kEffortBefore = "Reasoning Effort: ";
inline constexpr std::string_view kEffortAfter =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

inline constexpr std::string_view kResponseFormat =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// Before and after the tool schemas, one JSON object per line.
inline constexpr std::string_view kToolsBefore =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
inline constexpr std::string_view kToolsAfter =
    R"(

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
)";

}  // namespace millrace::wire
