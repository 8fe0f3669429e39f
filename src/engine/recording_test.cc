#include "engine/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

using ::testing::HasSubstr;

RecordingHeader header() {
  RecordingHeader header;
  header.numerics = "reference";
  header.numerics_id = "reference-0123";
  header.isa = "AVX2";
  header.num_threads = 2;
  header.model = {"aa", "bb"};
  header.vocab_size = 512;
  header.eos_token_ids = {1, 7};
  header.scheduler.num_blocks = 100;
  header.scheduler.block_size = 16;
  header.scheduler.max_model_len = 300;
  header.scheduler.max_step_ms = 0.1;  // no binary fraction
  return header;
}

Request request() {
  Request request;
  request.request_id = std::string("a \"b\"\\\n\0\xff", 9);
  request.prompt_token_ids = {3, 1, 4, 511};
  SamplingParams& s = request.sampling;
  s.temperature = 0.7;
  s.top_k = -1;
  s.top_p = 1.0 / 3;
  s.min_p = 5e-324;
  s.presence_penalty = -2;
  s.frequency_penalty = 1e-7;
  s.repetition_penalty = 1.1;
  s.logit_bias = {{5, -100}, {6, 0.3}};
  s.allowed_token_ids = {5, 6};
  s.bad_words_token_ids = {{1, 2}, {3}};
  s.seed = ~uint64_t{0};
  s.stop_token_ids = {9};
  s.stop = {"\xe2\x80\x94", "x"};
  s.include_stop_str_in_output = true;
  s.skip_special_tokens = false;
  s.ignore_eos = true;
  s.min_tokens = 2;
  s.max_tokens = 20;
  s.logprobs = 3;
  s.prompt_logprobs = 0;
  request.stop_scope = {4, 5};
  request.choice_idx = 2;
  request.num_choices = 3;
  request.priority = -1;
  request.fairness_key = "key";
  request.timeout_ms = 1234.5;
  return request;
}

std::vector<Record> all_kinds() {
  return {header(),
          RecordedArrival{5, 17.25, request()},
          RecordedArrival{6, 17.5, Request()},
          RecordedPlan{0, 18, {{0, 0, 4, 3}, {3, 0, 8, 0}}, 0xfedcba9876543210},
          RecordedCancel{6},
          RecordedResult{0.3, false, {{4, "\xff{", true}}, {4, 0, 4}, {{0, 1, Code::kCorrupt, "bad"}}},
          RecordedPause{5, true, 19},
          RecordedResult{1e-300, true, {}, {}, {}},
          RecordingEnd{}};
}

std::string text_of(const std::vector<Record>& records) {
  uint64_t sum = kFirstSum;
  std::string text;
  for (const Record& record : records) append_record(record, sum, text);
  return text;
}

// All records, or the error.
Result<std::vector<Record>> read(std::string_view text) {
  RecordingReader reader(text);
  std::vector<Record> records;
  for (;;) {
    ASSIGN_OR_RETURN(std::optional<Record> record, reader.next());
    if (!record) return records;
    records.push_back(std::move(*record));
  }
}

std::string error_of(std::string_view text) {
  const Result<std::vector<Record>> records = read(text);
  return records.has_value() ? "accepted" : records.error().message;
}

// A line with the checksum that it should have behind `before`.
std::string sealed(std::string_view before, std::string_view body) {
  uint64_t sum = kFirstSum;
  std::string text;
  for (size_t at = 0; at < before.size();) {
    const size_t end = before.find(",\"sum\"", at);
    const size_t begin = text.size();
    text.append(before.substr(at, end - at));
    append_sum(begin, sum, text);
    at = before.find('\n', at) + 1;
  }
  const size_t begin = text.size();
  text.append(body);
  append_sum(begin, sum, text);
  return text;
}

TEST(Recording, WhatIsWrittenIsReadAgain) {
  const std::string text = text_of(all_kinds());
  const Result<std::vector<Record>> records = read(text);
  ASSERT_TRUE(records.has_value()) << records.error().message;
  ASSERT_EQ(records.value().size(), all_kinds().size());
  EXPECT_EQ(text_of(records.value()), text);
  const auto& arrival = std::get<RecordedArrival>(records.value()[1]);
  EXPECT_EQ(arrival.handle, 5);
  EXPECT_EQ(arrival.now_ms, 17.25);
  const SamplingParams &got = arrival.request.sampling, want = request().sampling;
  EXPECT_EQ(arrival.request.request_id, request().request_id) << "any bytes";
  EXPECT_EQ(got.stop, want.stop);
  EXPECT_EQ(got.temperature, want.temperature) << "the same bits";
  EXPECT_EQ(got.top_p, want.top_p);
  EXPECT_EQ(got.min_p, want.min_p);
  EXPECT_EQ(got.logit_bias, want.logit_bias);
  EXPECT_EQ(got.seed, want.seed);
  EXPECT_EQ(got.bad_words_token_ids, want.bad_words_token_ids);
  EXPECT_EQ(arrival.request.stop_scope.end_at_token_id, 5);
  EXPECT_EQ(arrival.request.timeout_ms, 1234.5);
  EXPECT_FALSE(std::get<RecordedArrival>(records.value()[2]).request.sampling.seed);
  const auto& result = std::get<RecordedResult>(records.value()[5]);
  EXPECT_EQ(result.new_tokens[0].bytes, "\xff{");
  EXPECT_EQ(result.errors[0].code, Code::kCorrupt);
}

TEST(Recording, EveryLineIsJsonThatOthersCanRead) {
  const std::string text = text_of({header(), RecordedCancel{6}, RecordingEnd{}});
  EXPECT_THAT(text, HasSubstr(R"({"header":{"version":2,"numerics":"reference",)"));
  EXPECT_THAT(text, HasSubstr(R"("admission_headroom_blocks":null,)"));
  EXPECT_THAT(text, HasSubstr("\n" R"({"cancel":{"handle":6},"sum":")"));
  EXPECT_THAT(text, HasSubstr("\n" R"({"end":{},"sum":")"));
}

TEST(Recording, AFileThatWasCutAtAnyByteIsReadUpToItsLastWholeRecord) {
  const std::string text = text_of(all_kinds());
  const size_t header_bytes = text.find('\n') + 1;
  size_t num_whole = 0;
  for (size_t size = 0; size < text.size(); ++size) {
    num_whole += size > 0 && text[size - 1] == '\n';
    const Result<std::vector<Record>> records = read(std::string_view(text).substr(0, size));
    ASSERT_EQ(records.has_value(), size >= header_bytes) << "cut at byte " << size;
    if (!records.has_value()) continue;
    EXPECT_EQ(records.value().size(), num_whole) << "cut at byte " << size;
  }
  EXPECT_EQ(error_of(""), "found no whole line, expected a recording");
}

TEST(Recording, TellsARunThatEndedFromOneThatWasKilled) {
  const std::string text = text_of(all_kinds());
  for (const bool is_whole : {true, false}) {
    const size_t size = is_whole ? text.size() : text.size() - 1;
    RecordingReader reader(std::string_view(text).substr(0, size));
    while (reader.next().value()) {
    }
    EXPECT_EQ(reader.is_complete(), is_whole);
    EXPECT_EQ(reader.line(), int64_t(all_kinds().size()) - !is_whole);
  }
}

TEST(Recording, EveryChangedByteIsNoticed) {
  const std::string text = text_of(all_kinds());
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] ^= 1;
    // Without the last newline the end is missing, as if the file was cut.
    if (at + 1 == text.size()) {
      EXPECT_EQ(read(changed).value().size(), all_kinds().size() - 1);
    } else {
      EXPECT_THAT(error_of(changed), HasSubstr("line ")) << "byte " << at;
    }
  }
}

TEST(Recording, LinesCannotBeLostRepeatedOrMoved) {
  std::vector<std::string> lines;
  const std::string text = text_of(all_kinds());
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = text.find('\n', at) + 1;
    lines.push_back(text.substr(at, end - at));
  }
  const auto joined = [](const std::vector<std::string>& parts) {
    std::string out;
    for (const std::string& part : parts) out += part;
    return out;
  };
  std::vector<std::string> changed = lines;
  changed.erase(changed.begin() + 4);
  EXPECT_THAT(error_of(joined(changed)), HasSubstr("line 5: checksum: found "));
  changed = lines;
  changed.insert(changed.begin() + 4, lines[4]);
  EXPECT_THAT(error_of(joined(changed)), HasSubstr("line 6: checksum: found "));
  changed = lines;
  std::swap(changed[1], changed[2]);
  EXPECT_THAT(error_of(joined(changed)), HasSubstr("line 2: checksum: found "));
}

TEST(Recording, ErrorsNameLineFoundAndExpected) {
  const std::string first = text_of({header()});
  const auto error = [&](std::string_view body) { return error_of(sealed(first, body)); };
  EXPECT_EQ(error_of("MZ\n"), "line 1: found something else, expected the header of a recording");
  EXPECT_EQ(error_of(sealed("", R"({"header":{"version":3,"new":1})")),
            "line 1: version: found 3, expected 2");
  EXPECT_EQ(error(R"({"cancel":{"handle":6})"), "accepted");
  EXPECT_EQ(error(R"({"cancel":{"handle":"6"})"),
            "line 2: byte 21: found \"6\"}, expected an integer of 64 bits");
  EXPECT_EQ(error(R"({"cancel":{"handle":9223372036854775808})"),
            "line 2: byte 21: found 9223372036854775808}, expected an integer of 64 bits");
  EXPECT_EQ(error(R"({"cancel":{"id":6})"), "line 2: byte 13: found id\":6}, expected handle");
  EXPECT_EQ(error(R"({"cancel":{"handle":6}, )"), "line 2: byte 23: found , , expected the checksum");
  EXPECT_EQ(error(R"({"cancel":{"handle":6)"), "line 2: byte 22: found nothing, expected }");
  EXPECT_EQ(error(R"({"surprise":{})"),
            "line 2: byte 1: found {\"surprise\":{}, expected a kind of record");
  EXPECT_EQ(error(R"({"pause":{"handle":6,"is_paused":maybe,"now_ms":1})"),
            "line 2: byte 34: found maybe,\"now_ms\":1}, expected false");
  EXPECT_EQ(error(R"({"pause":{"handle":6,"is_paused":true,"now_ms":inf})"),
            "line 2: byte 48: found inf}, expected a number of 64 bits");
  EXPECT_THAT(error_of(first + "{}\n"), HasSubstr("line 2: checksum: found "));
  EXPECT_THAT(error_of(first + "\n"), HasSubstr("line 2: checksum: found "));
  EXPECT_EQ(error_of(text_of({header(), header()})),
            "line 2: found a second header, expected what happened in the run");
  EXPECT_EQ(error_of(text_of({header(), RecordingEnd{}, RecordedCancel{1}})),
            "line 3: found a record, expected nothing behind the end of the run");
  EXPECT_THAT(error_of(first + std::string(kMaxRecordBytes + 1, ' ') + "\n"),
              HasSubstr("line 2: found 33554433 bytes, expected at most 33554432"));
}

TEST(Recording, APlacementIsWhateverAPlanSaysBesideItsRows) {
  const std::vector<BlockId> blocks = {3, 4}, other_blocks = {3, 5};
  StepPlan plan;
  plan.rows.emplace_back();
  plan.rows[0].block_table = blocks;
  plan.rows[0].state_slot = 1;
  std::vector<uint64_t> digests = {placement_digest(plan)};
  const auto add = [&](auto change) {
    StepPlan changed = plan;
    change(changed);
    digests.push_back(placement_digest(changed));
  };
  add([&](StepPlan& p) { p.rows[0].block_table = other_blocks; });
  add([&](StepPlan& p) { p.rows[0].state_slot = 2; });
  add([&](StepPlan& p) { p.rows[0].prompt_logprobs = true; });
  add([&](StepPlan& p) { p.finished = {9}; });
  add([&](StepPlan& p) { p.started.push_back({9, 1, nullptr, 5}); });
  add([&](StepPlan& p) { p.state_copies.push_back({1, 2}); });
  add([&](StepPlan& p) { p.block_copies.push_back({1, 2}); });
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::unique(digests.begin(), digests.end()), digests.end());
}

}  // namespace
}  // namespace millrace
