#pragma once

// The lines of a batch file, in and out, as the OpenAI API has them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "openai/completion_request.h"
#include "openai/completion_response.h"

namespace millrace {

// {custom_id, method, url, body}, parsed.
struct BatchLine {
  std::string custom_id;
  openai::CompletionRequest request;
};

// A line that cannot be answered: no request at all, or one that the API would refuse.
struct BatchRefusal {
  std::optional<std::string> custom_id;  // none: the line has none
  Error error;
  bool is_request = false;  // well-formed around a body that is refused
};

struct BatchOptions {
  SamplingParams defaults;
  uint64_t seed = 0;              // with custom_id: the seed of requests that have none
  std::string served_model_name;  // requests for another model are refused; empty: none is
  openai::RequestLimits limits;
};

std::variant<BatchLine, BatchRefusal> parse_batch_line(std::string_view line,
                                                       const BatchOptions& options);

// The id of the answer to a line: the same whenever it is answered, another one when the line or
// what the options make of it changes.
std::string batch_id(int64_t line_number, std::string_view line, const BatchOptions& options);

// {id, custom_id, response, error}, with the line end.
std::string answered_line(const std::string& id, const std::string& custom_id, int status,
                          const std::string& body);
std::string refused_line(const std::string& id, const BatchRefusal& refusal);

// Of a line of an output: what says whether it answers a line of the input.
struct AnsweredLine {
  std::string id;
  std::optional<std::string> custom_id;
  std::string system_fingerprint;  // empty: refused
};
Result<AnsweredLine> read_answered_line(std::string_view line, const JsonLimits& limits);

// Whether `text` may be what a stopped run has written of a line.
bool is_begun_line(std::string_view text);

// The custom_id of a line of the input, if it has one.
std::optional<std::string> custom_id_of(std::string_view line, const JsonLimits& limits);

}  // namespace millrace
