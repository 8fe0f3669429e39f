#pragma once

// Flags that several commands have, and checks of values. Includes CLI11, which takes seconds to
// compile: for the files alone that add flags.

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

#include "base/format.h"
#include "commands.h"
#include "model_flags.h"

namespace millrace {

inline constexpr const char* kModelHelp =
    "model directory in the released format; default: models/nano, which comes with the program";

// CLI11 lets integers wrap that do not fit, and reads 010 as eight.
template <class Integer>
CLI::Validator integer(Integer least = std::numeric_limits<Integer>::min(),
                       Integer most = std::numeric_limits<Integer>::max()) {
  const auto check = [least, most](std::string& text) {
    Integer number = 0;
    if (!parse_number(text, number) || number < least || number > most) {
      return format("found \"", text, "\", expected an integer from ", least, " to ", most);
    }
    text = std::to_string(number);
    return std::string();
  };
  return CLI::Validator(check, "");
}

std::string check_path(const std::string& path);  // not empty
// Of files that are not also stdin or stdout: there, - would be a file of that name.
std::string check_file(const std::string& path);
std::string check_text(const std::string& text);  // not empty
std::string check_step_ms(const std::string& text);

void add_compute_flags(CLI::App& command, int& num_threads, std::string& isa);
void add_model_flags(CLI::App& command, ModelFlags& flags);
// --engine: the model's, or answers from a script.
void add_engine_choice_flag(CLI::App& command, ModelFlags& flags);
void add_context_flag(CLI::App& command, ModelFlags& flags);
void add_record_flag(CLI::App& command, ModelFlags& flags);
void add_engine_flags(CLI::App& command, EngineFlags& flags);

}  // namespace millrace
