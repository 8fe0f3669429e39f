#include "eval/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "chat/json.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CaseScore scored(int64_t num_tokens, int64_t num_likeliest, double nll) {
  return {.num_tokens = num_tokens,
          .num_bytes = 3 * num_tokens,
          .num_likeliest = num_likeliest,
          .nll = nll};
}

// Two lengths by two depths with a case each; the second mode loses the last.
EvalRun needle_run() {
  EvalRun run;
  run.model = "some/model";
  run.modes = {{"fp32", "fp32-1"}, {"reference", "reference-2"}};
  EvalTask& task = run.tasks.emplace_back();
  task.name = "needle";
  task.form = "chat";
  task.lengths = {100, 200};
  task.depths = {0, 50};
  task.cells = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  task.scores = {{scored(4, 4, 1), scored(4, 4, 1), scored(4, 4, 1), scored(4, 4, 1)},
                 {scored(4, 4, 1), scored(4, 4, 1), scored(4, 4, 1), scored(4, 2, 3)}};
  return run;
}

TEST(EvalReport, NamesModesFiguresAndTheDifferenceToTheFirst) {
  const std::string text = eval_text(needle_run());
  EXPECT_THAT(text, HasSubstr("needle, chat: 4 cases\n"));
  EXPECT_THAT(text, HasSubstr("fp32-1                             16   0.25000"));
  EXPECT_THAT(text, HasSubstr("NLL +0.12500 ± 0.12500, exact -25.0 ± 25.0 %"));
}

TEST(EvalReport, ATextOfWhichAPartIsJudgedSaysHowMuch) {
  EvalRun run = needle_run();
  run.tasks[0].name = "nll";
  run.file = {"book.txt", std::string(64, 'a'), 48, 10, 5};
  EXPECT_THAT(eval_text(run), HasSubstr("of book.txt, 48 bytes, sha256 aaaaaaaaaaaaaaaa; at most"));
  run.file.num_bytes = 1000;
  EXPECT_THAT(eval_text(run), HasSubstr("of book.txt, 48 of 1000 bytes, sha256"));
}

TEST(EvalReport, OneModeIsComparedWithNothing) {
  EvalRun run = needle_run();
  run.modes.resize(1);
  run.tasks[0].scores.resize(1);
  EXPECT_THAT(eval_text(run), Not(HasSubstr("difference")));
}

TEST(EvalReport, CellsAreExactCasesByLengthAndDepth) {
  const EvalRun run = needle_run();
  const EvalTask& task = run.tasks[0];
  EXPECT_EQ(task.cell_figures(1, 1, 1).num_exact, 0);
  EXPECT_EQ(task.cell_figures(1, 1, 0).num_exact, 1);
  EXPECT_EQ(task.cell_figures(1, 1, -1).num_cases, 2);
  EXPECT_EQ(task.cell_figures(0, 1, -1).num_exact, 2);
  EXPECT_THAT(eval_text(run), HasSubstr("  reference      tokens     0 %    50 %     all\n"
                                        "                    100   100 %   100 %   100 %\n"
                                        "                    200   100 %     0 %    50 %\n"));
}

TEST(EvalReport, IsAlsoJson) {
  const EvalRun run = needle_run();
  const Result<JsonValue> json = parse_json(eval_json(run));
  ASSERT_TRUE(json.has_value());
  EXPECT_THAT(eval_json(run), HasSubstr(R"("exact_difference": -0.25)"));
  EXPECT_THAT(eval_json(run), HasSubstr(R"("length": 200, "depth": 50, "num_cases": 1)"));
}

TEST(EvalReport, CasesAreALineForEachMode) {
  const EvalRun run = needle_run();
  const std::vector<EvalCase> cases(4, {.token_ids = {1, 2}, .judged_begin = 1, .judged_end = 2});
  const std::string lines = eval_cases_jsonl(run, run.tasks[0], cases);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 8);
  EXPECT_THAT(lines,
              HasSubstr(R"("length": 200, "depth": 50, "case": 3, "mode": "reference", "nll": 3)"));
}

}  // namespace
}  // namespace millrace
