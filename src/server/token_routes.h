#pragma once

// Requests that need the tokenizer but not the engine, and those that only name others.

#include <memory>

#include "server/call.h"

namespace millrace {

void tokenize(std::unique_ptr<Call> call);
void detokenize(std::unique_ptr<Call> call);
void tokenizer_info(std::unique_ptr<Call> call);
void abort_requests(std::unique_ptr<Call> call);

}  // namespace millrace
