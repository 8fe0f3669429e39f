#pragma once

// What is written about an evaluation: for people, and for programs. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "eval/cases.h"
#include "eval/score.h"

namespace millrace {

// One way to compute, of those that are compared.
struct EvalMode {
  std::string name;  // as the flag has it
  std::string numerics_id;
};

// One kind of cases. They lie in cells: rows are lengths, columns depths; a task without either has
// one cell.
struct EvalTask {
  std::string name;              // "nll", "needle", "copy"
  std::string form;              // "chat", "plain"; empty: neither
  std::vector<int64_t> lengths;  // tokens of a prompt, or items
  std::vector<int64_t> depths;   // in percent
  struct Cell {
    size_t length_idx = 0, depth_idx = 0;
  };
  std::vector<Cell> cells;                     // of each case
  std::vector<std::vector<CaseScore>> scores;  // [mode][case]

  // "needle, chat"
  std::string title() const { return form.empty() ? name : name + ", " + form; }
  EvalFigures figures(size_t mode_idx) const { return add_up(scores[mode_idx]); }
  // Of one depth, or of all (-1).
  EvalFigures cell_figures(size_t mode_idx, size_t length_idx, int64_t depth_idx) const;
};

// The text of task "nll".
struct EvalFile {
  std::string name, sha256;
  int64_t num_bytes = 0;
  int64_t window = 0, stride = 0;
};

struct EvalRun {
  std::string version;  // of this program
  std::string model;
  uint64_t seed = 0;
  std::vector<EvalMode> modes;  // figures are compared with those of the first
  EvalFile file;                // if there is a task "nll"
  std::vector<EvalTask> tasks;
};

std::string eval_text(const EvalRun& run);

// One object; the same run has the same bytes.
std::string eval_json(const EvalRun& run);

// A line of JSON for each case of each mode.
std::string eval_cases_jsonl(const EvalRun& run, const EvalTask& task,
                             const std::vector<EvalCase>& cases);

}  // namespace millrace
