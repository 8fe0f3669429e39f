#pragma once

// The encoder and the reply parser as functions from one line of JSON to one line of JSON, without
// line ends: for the command line, and for comparing with other implementations. The formats are
// those of tests/golden/encoding.

#include <string>
#include <string_view>

namespace millrace {

// {id, input} -> {id, prompt, images?} or {id, error}.
std::string chat_encode_line(std::string_view line);

// {id, raw, thinking?, start?, stop?, parse_tools?, json_output?, engine_reason?}
// -> {id, reasoning, content, tool_calls, finish_reason} or {id, error}.
std::string chat_parse_line(std::string_view line);

}  // namespace millrace
