#include "eval/report.h"

#include <algorithm>

#include "base/print.h"
#include "chat/json_writer.h"

namespace millrace {
namespace {

void add_difference(std::string& out, const EvalDifference& difference, double unit, int digits) {
  append_printf(out, "%+.*f", digits, difference.mean * unit);
  if (difference.standard_error)
    append_printf(out, " ± %.*f", digits, *difference.standard_error * unit);
}

// What a case is, in the plural.
const char* unit_of(const EvalTask& task) { return task.name == "nll" ? "windows" : "cases"; }

void add_figures(std::string& out, const EvalRun& run, const EvalTask& task) {
  const bool is_text = task.name == "nll";
  append_printf(out, "  %-28s %8s %9s %10s %9s", "mode", "tokens", "NLL/token", "perplexity",
                "likeliest");
  append_printf(out, is_text ? " %9s" : " %7s", is_text ? "bits/byte" : "exact");
  if (run.modes.size() > 1) append_printf(out, "   difference to %s", run.modes[0].name.c_str());
  out += '\n';
  for (size_t m = 0; m < run.modes.size(); ++m) {
    const EvalFigures f = task.figures(m);
    append_printf(out, "  %-28s %8lld %9.5f %10.4f %7.2f %%", run.modes[m].numerics_id.c_str(),
                  static_cast<long long>(f.num_tokens), f.nll_per_token(), f.perplexity(),
                  100 * f.likeliest());
    if (is_text) {
      append_printf(out, " %9.5f", f.bits_per_byte());
    } else {
      append_printf(out, " %5.1f %%", 100 * f.exact());
    }
    if (m > 0) {
      out += "   NLL ";
      add_difference(out, nll_difference(task.scores[0], task.scores[m]), 1, 5);
      if (!is_text) {
        out += ", exact ";
        add_difference(out, exact_difference(task.scores[0], task.scores[m]), 100, 1);
        out += " %";
      }
    }
    out += '\n';
  }
}

// Exact cases by length and depth.
void add_cells(std::string& out, const EvalRun& run, const EvalTask& task) {
  const bool has_depths = task.depths.size() > 0;
  for (size_t m = 0; m < run.modes.size(); ++m) {
    append_printf(out, "\n  %-12s %8s", run.modes[m].name.c_str(),
                  task.name == "copy" ? "items" : "tokens");
    for (const int64_t depth : task.depths) {
      append_printf(out, " %5lld %%", static_cast<long long>(depth));
    }
    append_printf(out, " %7s\n", has_depths ? "all" : "exact");
    for (size_t l = 0; l < task.lengths.size(); ++l) {
      append_printf(out, "  %-12s %8lld", "", static_cast<long long>(task.lengths[l]));
      for (size_t d = 0; d < task.depths.size(); ++d) {
        append_printf(out, " %5.0f %%", 100 * task.cell_figures(m, l, int64_t(d)).exact());
      }
      append_printf(out, " %5.0f %%\n", 100 * task.cell_figures(m, l, -1).exact());
    }
  }
}

void write_difference(JsonWriter& json, const std::string& name, const EvalDifference& difference) {
  json.member(name, difference.mean);
  json.key(name + "_standard_error");
  if (difference.standard_error) {
    json.value(*difference.standard_error);
  } else {
    json.null();
  }
}

void write_figures(JsonWriter& json, const EvalTask& task, const EvalFigures& f) {
  json.member("num_cases", f.num_cases).member("num_tokens", f.num_tokens);
  json.member("nll_per_token", f.nll_per_token()).member("perplexity", f.perplexity());
  json.member("likeliest", f.likeliest());
  if (task.name == "nll") {
    json.member("num_bytes", f.num_bytes).member("bits_per_byte", f.bits_per_byte());
  } else {
    json.member("exact", f.exact());
  }
}

void write_task(JsonWriter& json, const EvalRun& run, const EvalTask& task) {
  json.begin_object().member("task", task.name);
  if (!task.form.empty()) json.member("form", task.form);
  if (!task.lengths.empty()) json.member("lengths", task.lengths);
  if (!task.depths.empty()) json.member("depths", task.depths);
  json.key("modes").begin_array();
  for (size_t m = 0; m < run.modes.size(); ++m) {
    json.begin_object();
    json.member("name", run.modes[m].name).member("numerics_id", run.modes[m].numerics_id);
    write_figures(json, task, task.figures(m));
    write_difference(json, "nll_difference", nll_difference(task.scores[0], task.scores[m]));
    if (task.name != "nll") {
      write_difference(json, "exact_difference", exact_difference(task.scores[0], task.scores[m]));
    }
    if (!task.lengths.empty()) {
      json.key("cells").begin_array();
      for (size_t l = 0; l < task.lengths.size(); ++l) {
        for (size_t d = 0; d < std::max<size_t>(task.depths.size(), 1); ++d) {
          json.begin_object().member("length", task.lengths[l]);
          if (!task.depths.empty()) json.member("depth", task.depths[d]);
          write_figures(json, task, task.cell_figures(m, l, int64_t(d)));
          json.end_object();
        }
      }
      json.end_array();
    }
    json.end_object();
  }
  json.end_array().end_object();
}

}  // namespace

EvalFigures EvalTask::cell_figures(size_t mode_idx, size_t length_idx, int64_t depth_idx) const {
  EvalFigures figures;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].length_idx != length_idx) continue;
    if (depth_idx >= 0 && cells[i].depth_idx != size_t(depth_idx)) continue;
    figures.add(scores[mode_idx][i]);
  }
  return figures;
}

std::string eval_text(const EvalRun& run) {
  std::string out;
  append_printf(out, "model %s, seed %llu\n", run.model.c_str(),
                static_cast<unsigned long long>(run.seed));
  for (const EvalTask& task : run.tasks) {
    append_printf(out, "\n%s: %zu %s", task.title().c_str(), task.cells.size(), unit_of(task));
    if (task.name == "nll") {
      const int64_t num_judged = task.figures(0).num_bytes;
      append_printf(out, " of %s, ", run.file.name.c_str());
      if (num_judged < run.file.num_bytes) {
        append_printf(out, "%lld of ", static_cast<long long>(num_judged));
      }
      append_printf(out, "%lld bytes, sha256 %s; at most %lld tokens, %lld of them new",
                    static_cast<long long>(run.file.num_bytes),
                    run.file.sha256.substr(0, 16).c_str(), static_cast<long long>(run.file.window),
                    static_cast<long long>(run.file.stride));
    }
    out += '\n';
    add_figures(out, run, task);
    if (!task.lengths.empty()) add_cells(out, run, task);
  }
  return out;
}

std::string eval_json(const EvalRun& run) {
  JsonWriter json;
  json.begin_object().member("version", run.version).member("model", run.model);
  json.member("seed", run.seed);
  if (!run.file.name.empty()) {
    json.key("file").begin_object().member("name", run.file.name).member("sha256", run.file.sha256);
    json.member("num_bytes", run.file.num_bytes).member("window", run.file.window);
    json.member("stride", run.file.stride).end_object();
  }
  json.key("tasks").begin_array();
  for (const EvalTask& task : run.tasks) write_task(json, run, task);
  return json.end_array().end_object().text();
}

std::string eval_cases_jsonl(const EvalRun& run, const EvalTask& task,
                             const std::vector<EvalCase>& cases) {
  std::string lines;
  for (size_t i = 0; i < cases.size(); ++i) {
    for (size_t m = 0; m < run.modes.size(); ++m) {
      const CaseScore& score = task.scores[m][i];
      JsonWriter json;
      json.begin_object().member("task", task.name);
      if (!task.form.empty()) json.member("form", task.form);
      if (!task.lengths.empty()) json.member("length", task.lengths[task.cells[i].length_idx]);
      if (!task.depths.empty()) json.member("depth", task.depths[task.cells[i].depth_idx]);
      json.member("case", int64_t(i)).member("mode", run.modes[m].name);
      json.member("nll", score.nll).member("num_tokens", score.num_tokens);
      json.member("num_likeliest", score.num_likeliest);
      json.member("judged_begin", cases[i].judged_begin).member("judged_end", cases[i].judged_end);
      json.member("token_ids", cases[i].token_ids);
      lines += json.end_object().text() + "\n";
    }
  }
  return lines;
}

}  // namespace millrace
