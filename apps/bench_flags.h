#pragma once

#include <functional>

#include "commands.h"

namespace CLI {
class App;
}

namespace millrace {

void add_bench(CLI::App& app, BenchCommandOptions& options, std::function<int()>& action);

}  // namespace millrace
