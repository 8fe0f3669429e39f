#pragma once

#include <functional>

#include "commands.h"

namespace CLI {
class App;
}

namespace millrace {

void add_serve(CLI::App& app, ServeCommandOptions& options, std::function<int()>& action);

}  // namespace millrace
