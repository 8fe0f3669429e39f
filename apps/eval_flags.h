#pragma once

#include <functional>

#include "commands.h"

namespace CLI {
class App;
}

namespace millrace {

void add_eval(CLI::App& app, EvalCommandOptions& options, std::function<int()>& action);

}  // namespace millrace
