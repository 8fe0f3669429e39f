#include "loadgen/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/json.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunOutcome some_run() {
  RunOutcome run;
  for (int64_t id = 0; id < 3; ++id) {
    RequestRecord record;
    record.id = id;
    record.send_ns = id * 1000;
    record.head_ns = record.visible_ns = 5'000'000;
    record.chunks = {{5'000'000, 1}, {15'000'000, 1}, {26'000'000, 1}};
    record.done_ns = 27'000'000;
    record.planned_prompt_tokens = record.planned_output_tokens = 3;
    record.prompt_tokens = 3, record.cached_tokens = 1, record.output_tokens = 3;
    record.http_status = 200;
    record.finish_reason = "length";
    run.records.push_back(record);
  }
  run.num_planned = 3;
  run.wall_ns = 30'000'000;
  run.client_cpu_ns = 3'000'000;
  return run;
}

RunSetup some_setup() {
  RunSetup setup;
  setup.version = "1.2.3";
  setup.target = "http://host";
  setup.model = "model \"m\"";
  setup.workload = "fixed";
  setup.load = "closed loop, 3 at a time";
  setup.corpus = "a corpus", setup.corpus_sha256 = "0123456789abcdef0123";
  setup.seed = 18446744073709551615ull;
  return setup;
}

std::string json_number(const JsonValue& json, const char* name) {
  const JsonValue* value = json.find(name);
  return value == nullptr ? "absent" : value->text;
}

TEST(Report, JsonHasTheFiguresUnderNamesWithTheirUnits) {
  const RunOutcome run = some_run();
  const RunMetrics metrics = compute_metrics(run);
  const Result<JsonValue> parsed = parse_json(report_json(some_setup(), run, metrics, {}));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  const JsonValue& json = parsed.value();
  EXPECT_TRUE(json.find("valid")->boolean);
  EXPECT_EQ(json.find("model")->text, "model \"m\"");
  EXPECT_EQ(json_number(json, "seed"), "18446744073709551615");
  EXPECT_EQ(json_number(json, "requests_succeeded"), "3");
  EXPECT_EQ(json_number(json, "ttft_ms_n"), "3");
  EXPECT_EQ(json_number(json, "itl_ms_p90"), "10.5");
  EXPECT_EQ(json_number(json, "token_gap_ms_max"), "11");
  EXPECT_EQ(json_number(json, "output_tokens"), "9");
  EXPECT_EQ(std::stod(json_number(json, "interactivity_tok_s_p90")), interactivity(10.5));
  for (const char* name :
       {"total_tok_s", "cached_tok_s", "new_tok_s", "output_tok_s", "work_tok_s", "requests_per_s",
        "e2el_ms_p99", "lag_ms_p99", "e2e_normalised_interactivity_tok_s_p90", "max_gap_ms_p50",
        "concurrency_mean", "client_cpu", "duration_s", "start_time", "command_line"}) {
    EXPECT_NE(json.find(name), nullptr) << name;
  }
  EXPECT_EQ(json.find("total_tok_s_per_gpu"), nullptr);
  for (const std::string& key : json.keys) EXPECT_EQ(json.find(key)->is_repeated, false) << key;
}

TEST(Report, FiguresPerGpuAreDividedByTheirNumber) {
  RunSetup setup = some_setup();
  setup.num_gpus = 4;
  const RunOutcome run = some_run();
  const RunMetrics metrics = compute_metrics(run);
  const JsonValue json = parse_json(report_json(setup, run, metrics, {})).value();
  EXPECT_DOUBLE_EQ(std::stod(json_number(json, "output_tok_s_per_gpu")) * 4,
                   std::stod(json_number(json, "output_tok_s")));
  EXPECT_THAT(report_text(setup, run, metrics, {}), HasSubstr("per GPU"));
}

TEST(Report, SaysWhyARunIsNotValid) {
  const RunOutcome run = some_run();
  const RunMetrics metrics = compute_metrics(run);
  const std::string text = report_text(some_setup(), run, metrics, {"one reason", "another"});
  EXPECT_THAT(text, HasSubstr("valid        NO: one reason\n"));
  EXPECT_THAT(text, HasSubstr("valid        NO: another\n"));
  EXPECT_THAT(report_text(some_setup(), run, metrics, {}), HasSubstr("valid        yes\n"));
  const JsonValue json =
      parse_json(report_json(some_setup(), run, metrics, {"one reason"})).value();
  EXPECT_FALSE(json.find("valid")->boolean);
  EXPECT_EQ(json.find("invalid_reasons")->items.at(0).text, "one reason");
}

TEST(Report, TextIsAsciiAndNamesBothInteractivities) {
  const RunOutcome run = some_run();
  const std::string text = report_text(some_setup(), run, compute_metrics(run), {});
  for (const char c : text) EXPECT_TRUE(c == '\n' || (' ' <= c && c <= '~')) << int(c);
  EXPECT_THAT(text, HasSubstr("interactivity (1 / ITL)"));
  EXPECT_THAT(text, HasSubstr("E2E-normalised interactivity"));
  EXPECT_THAT(text, HasSubstr("a corpus, sha256 0123456789abcdef\n"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(Report, ARunWithoutAnswersCanBeReported) {
  RunOutcome run;
  run.num_planned = 5;
  const RunMetrics metrics = compute_metrics(run);
  const std::string text = report_text(some_setup(), run, metrics, {"interrupted"});
  EXPECT_THAT(text, HasSubstr("5 planned, 0 sent"));
  EXPECT_TRUE(parse_json(report_json(some_setup(), run, metrics, {"interrupted"})).has_value());
}

TEST(Report, TellsWhatTheServerUsedBetweenBothMoments) {
  RunSetup setup = some_setup();
  setup.before.emplace(), setup.after.emplace();
  setup.before->engine_cpu_ns = 1'000'000'000, setup.after->engine_cpu_ns = 1'500'000'000;
  setup.before->num_steps = 10, setup.after->num_steps = 17;
  const RunOutcome run = some_run();
  const JsonValue json = parse_json(report_json(setup, run, compute_metrics(run), {})).value();
  EXPECT_EQ(json_number(*json.find("server"), "engine_cpu_s"), "0.5");
  EXPECT_EQ(json_number(*json.find("server"), "steps"), "7");
}

TEST(Report, ARequestsEventsAreDifferencesOfTimes) {
  const std::string lines = requests_jsonl(some_run().records);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  const JsonValue json = parse_json(lines.substr(0, lines.find('\n'))).value();
  const std::vector<JsonValue>& events = json.find("event_ns")->items;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].text, "5000000");
  EXPECT_EQ(events[1].text, "10000000");
  EXPECT_EQ(events[2].text, "11000000");
}

}  // namespace
}  // namespace millrace
