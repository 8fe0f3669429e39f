// The C interface from a C++ program: what it brings, what it refuses, and what it leaves alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <millrace.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kModelDir = MILLRACE_SOURCE_DIR "/models/nano";

// What nano says to these is fixed by the numerics contract.
constexpr const char* kCapital =
    R"({"messages": [{"role": "user", "content": "What is the capital of France?"}]})";
constexpr const char* kCapitalAtOnce =
    R"({"thinking": false, "messages": [{"role": "user", "content": "What is the capital of France?"}]})";
constexpr const char* kWeather = R"({"messages": [{"role": "user", "content":
    "What is the weather in Paris?"}], "tools": [{"type": "function", "function":
    {"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object",
     "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]})";

template <class T>
T initialised(millrace_status (*init)(T*, size_t)) {
  T value;
  EXPECT_EQ(init(&value, sizeof value), MILLRACE_OK);
  return value;
}

millrace_engine_options engine_options() {
  millrace_engine_options options = initialised(millrace_engine_options_init);
  options.model_dir = kModelDir;
  options.num_threads = 1;
  return options;
}

std::string to_string(const millrace_text& text) {
  EXPECT_EQ(text.data[text.size], '\0');
  return {text.data, text.size};
}

// The parameters of most tests: greedy, so many tokens.
struct Greedy {
  explicit Greedy(int64_t count) : max_tokens(count) {
    params.temperature = 0;
    params.max_tokens = &max_tokens;
  }
  Greedy(const Greedy&) = delete;
  int64_t max_tokens;
  millrace_sampling_params params = initialised(millrace_sampling_params_init);
};

struct Choice {
  std::vector<int32_t> token_ids;
  std::string text, reasoning, content, call_name, arguments, stop_string, error;
  std::vector<float> logprobs;
  millrace_finish_reason finish_reason = MILLRACE_FINISH_NONE;
  int32_t stop_token_id = -1;
};

// Every choice to its end.
std::vector<Choice> read_all(millrace_request* request) {
  millrace_request_info info = initialised(millrace_request_info_init);
  EXPECT_EQ(millrace_get_request_info(request, &info), MILLRACE_OK);
  std::vector<Choice> choices(size_t(info.num_choices));
  millrace_event event = initialised(millrace_event_init);
  millrace_status status;
  while ((status = millrace_next_event(request, -1, &event)) == MILLRACE_OK) {
    Choice& choice = choices[size_t(event.choice_idx)];
    if (event.token_id >= 0) choice.token_ids.push_back(event.token_id);
    choice.text += to_string(event.text);
    for (size_t i = 0; i < event.num_parts; ++i) {
      const millrace_reply_part& part = event.parts[i];
      std::string* const to[] = {&choice.reasoning, &choice.content, &choice.call_name,
                                 &choice.arguments};
      *to[part.kind] += to_string(part.text);
    }
    if (event.logprobs != nullptr) choice.logprobs.push_back(event.logprobs->token.logprob);
    choice.finish_reason = event.finish_reason;
    choice.stop_token_id = event.stop_token_id;
    if (event.stop_string.data != nullptr) choice.stop_string = to_string(event.stop_string);
    if (event.error.data != nullptr) choice.error = to_string(event.error);
  }
  EXPECT_EQ(status, MILLRACE_END) << millrace_last_error();
  return choices;
}

class CapiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = create(); }
  static void TearDownTestSuite() { EXPECT_EQ(millrace_engine_destroy(engine_), MILLRACE_OK); }

  static millrace_engine* create(const millrace_engine_options& options = engine_options()) {
    millrace_engine* engine = nullptr;
    EXPECT_EQ(millrace_engine_create(&options, &engine), MILLRACE_OK) << millrace_last_error();
    return engine;
  }

  static millrace_request_options chat(const char* json, const millrace_sampling_params& sampling) {
    millrace_request_options options = initialised(millrace_request_options_init);
    options.chat_json = millrace_string(json);
    options.sampling = &sampling;
    return options;
  }

  static millrace_request_options text(const char* text, const millrace_sampling_params& sampling) {
    millrace_request_options options = initialised(millrace_request_options_init);
    options.text = millrace_string(text);
    options.sampling = &sampling;
    return options;
  }

  static millrace_request* submit(const millrace_request_options& options,
                                  millrace_engine* engine = engine_) {
    millrace_request* request = nullptr;
    EXPECT_EQ(millrace_submit(engine, &options, &request), MILLRACE_OK) << millrace_last_error();
    return request;
  }

  static std::vector<Choice> answers(const millrace_request_options& options,
                                     millrace_engine* engine = engine_) {
    millrace_request* request = submit(options, engine);
    std::vector<Choice> choices = read_all(request);
    EXPECT_EQ(millrace_request_destroy(request), MILLRACE_OK);
    return choices;
  }

  // The message of a submission that must be refused.
  static std::string refused(const millrace_request_options& options) {
    millrace_request* request = nullptr;
    EXPECT_EQ(millrace_submit(engine_, &options, &request), MILLRACE_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
    return millrace_last_error();
  }

  static millrace_engine* engine_;
};
millrace_engine* CapiTest::engine_ = nullptr;

// ---- Structs whose size is their version.

template <class T>
void expect_versions(millrace_status (*init)(T*, size_t)) {
  std::array<char, sizeof(T) + 16> memory;
  T* const value = reinterpret_cast<T*>(memory.data());
  const T whole = initialised(init);
  memory.fill(0x5a);
  ASSERT_EQ(init(value, 16), MILLRACE_OK);  // of an older header
  EXPECT_EQ(value->struct_size, 16u);
  EXPECT_EQ(memcmp(memory.data() + 4, reinterpret_cast<const char*>(&whole) + 4, 12), 0);
  EXPECT_EQ(memory[16], 0x5a);
  ASSERT_EQ(init(value, sizeof(T) + 8), MILLRACE_OK);  // of a newer one
  EXPECT_EQ(memory[sizeof(T)], 0);
  EXPECT_EQ(memory[sizeof(T) + 8], 0x5a);
  for (size_t size : {size_t{0}, size_t{4}, sizeof(T) - 1, size_t{1} << 20}) {
    EXPECT_EQ(init(value, size), MILLRACE_INVALID_ARGUMENT) << size;
    EXPECT_THAT(millrace_last_error(), HasSubstr("struct_size: found ")) << size;
  }
  EXPECT_EQ(init(nullptr, sizeof(T)), MILLRACE_INVALID_ARGUMENT);
  EXPECT_THAT(millrace_last_error(), HasSubstr(": found NULL, expected a pointer"));
}

TEST(CapiStructs, HaveEverySizeThatAHeaderMayHaveGivenThem) {
  expect_versions(millrace_engine_options_init);
  expect_versions(millrace_engine_info_init);
  expect_versions(millrace_sampling_params_init);
  expect_versions(millrace_request_options_init);
  expect_versions(millrace_request_info_init);
  expect_versions(millrace_event_init);
}

TEST_F(CapiTest, AnOlderProgramGetsDefaultsForFieldsThatItDoesNotKnow) {
  Greedy greedy(5);
  millrace_request_options options = chat(kCapitalAtOnce, greedy.params);
  options.struct_size = offsetof(millrace_request_options, priority);
  options.timeout_ms = -1;  // not looked at
  EXPECT_EQ(answers(options)[0].token_ids.size(), 5u);
}

TEST_F(CapiTest, AnOlderProgramGetsTheEventFieldsThatItKnows) {
  Greedy greedy(5);
  millrace_request* request = submit(chat(kCapitalAtOnce, greedy.params));
  millrace_event event;
  const size_t size = offsetof(millrace_event, parts);
  ASSERT_EQ(millrace_event_init(&event, size), MILLRACE_OK);
  event.error_status = 77;
  ASSERT_EQ(millrace_next_event(request, -1, &event), MILLRACE_OK);
  EXPECT_EQ(event.struct_size, size);
  EXPECT_GT(event.num_computed_tokens, 0);
  EXPECT_EQ(event.error_status, 77);
  millrace_request_destroy(request);
}

TEST_F(CapiTest, ANewerProgramMayNotUseFieldsThatTheLibraryDoesNotKnow) {
  struct Newer {
    millrace_request_options options;
    int64_t invention;
  } newer;
  ASSERT_EQ(millrace_request_options_init(&newer.options, sizeof newer), MILLRACE_OK);
  EXPECT_EQ(newer.invention, 0);
  Greedy greedy(3);
  newer.options.text = millrace_string("Once");
  newer.options.sampling = &greedy.params;
  EXPECT_EQ(answers(newer.options)[0].token_ids.size(), 3u);
  newer.invention = 1;
  EXPECT_THAT(refused(newer.options), HasSubstr("this library is older than the program"));
}

TEST_F(CapiTest, AStructThatWasNotInitialisedIsRefused) {
  millrace_request_options options = {};
  EXPECT_THAT(refused(options), HasSubstr("options.struct_size: found 0"));
  millrace_engine_info info = {};
  EXPECT_EQ(millrace_get_engine_info(engine_, &info), MILLRACE_INVALID_ARGUMENT);
  EXPECT_THAT(millrace_last_error(), HasSubstr("info.struct_size: found 0"));
}

// ---- Answers.

TEST_F(CapiTest, AChatComesAsReasoningAndContent) {
  Greedy greedy(100);
  const Choice answer = answers(chat(kCapital, greedy.params))[0];
  EXPECT_EQ(answer.reasoning, "The user asks for the capital of France. It is Paris.");
  EXPECT_EQ(answer.content, "The capital of France is Paris.");
  EXPECT_EQ(answer.text, answer.reasoning + "</think>" + answer.content);
  EXPECT_EQ(answer.finish_reason, MILLRACE_FINISH_STOP);
  EXPECT_EQ(answer.stop_token_id, -1);
}

TEST_F(CapiTest, AToolCallComesByNameAndArguments) {
  Greedy greedy(200);
  const Choice answer = answers(chat(kWeather, greedy.params))[0];
  EXPECT_EQ(answer.call_name, "get_weather");
  EXPECT_THAT(answer.arguments, StartsWith("{\"city\": "));
  EXPECT_EQ(answer.finish_reason, MILLRACE_FINISH_TOOL_CALLS);
  EXPECT_STREQ(millrace_finish_reason_name(answer.finish_reason), "tool_calls");
}

TEST_F(CapiTest, AChatIsTheSameAsItsTokens) {
  Greedy greedy(100);
  std::vector<int32_t> ids(1000);
  size_t size = 0;
  millrace_reply_start start = MILLRACE_REPLY_NONE;
  ASSERT_EQ(millrace_encode_chat(engine_, millrace_string(kCapital), ids.data(), ids.size(), &size,
                                 &start),
            MILLRACE_OK);
  EXPECT_EQ(start, MILLRACE_REPLY_REASONING);
  millrace_request_options options = initialised(millrace_request_options_init);
  options.token_ids = {ids.data(), size};
  options.reply_start = start;
  options.sampling = &greedy.params;
  EXPECT_EQ(answers(options)[0].content, "The capital of France is Paris.");
}

TEST_F(CapiTest, ALogprobComesWithEveryToken) {
  Greedy greedy(4);
  const int64_t num_top = 2, num_prompt_top = 1;
  greedy.params.logprobs = &num_top;
  greedy.params.prompt_logprobs = &num_prompt_top;
  millrace_request* request = submit(text("Once upon a time", greedy.params));
  millrace_event event = initialised(millrace_event_init);
  millrace_request_info info = initialised(millrace_request_info_init);
  ASSERT_EQ(millrace_get_request_info(request, &info), MILLRACE_OK);
  int64_t num_prompt_logprobs = 0;
  int num_tokens = 0;
  while (millrace_next_event(request, -1, &event) == MILLRACE_OK) {
    for (size_t i = 0; i < event.num_prompt_logprobs; ++i) {
      EXPECT_EQ(event.prompt_logprobs[i].num_top, 1u);
      EXPECT_LE(event.prompt_logprobs[i].token.logprob, event.prompt_logprobs[i].top[0].logprob);
    }
    num_prompt_logprobs += int64_t(event.num_prompt_logprobs);
    if (event.token_id < 0) continue;
    ++num_tokens;
    ASSERT_NE(event.logprobs, nullptr);
    ASSERT_EQ(event.logprobs->num_top, 2u);
    EXPECT_EQ(event.logprobs->token.token_id, event.token_id);
    EXPECT_EQ(event.logprobs->top[0].token_id, event.token_id);  // greedy
    EXPECT_EQ(event.logprobs->top[0].rank, 1);
    EXPECT_EQ(event.logprobs->top[1].rank, 2);
  }
  EXPECT_EQ(num_tokens, 4);
  EXPECT_EQ(num_prompt_logprobs, info.num_prompt_tokens - 1);
  millrace_request_destroy(request);
}

TEST_F(CapiTest, AnAnswerSaysWhatStoppedIt) {
  Greedy greedy(100);
  const millrace_text stops[] = {millrace_string("nowhere"), millrace_string("capital")};
  greedy.params.stop = stops;
  greedy.params.num_stop = 2;
  Choice answer = answers(chat(kCapitalAtOnce, greedy.params))[0];
  EXPECT_EQ(answer.text, "The ");
  EXPECT_EQ(answer.stop_string, "capital");
  greedy.params.num_stop = 0;
  const int32_t second = answer.token_ids[1];
  greedy.params.stop_token_ids = {&second, 1};
  answer = answers(chat(kCapitalAtOnce, greedy.params))[0];
  EXPECT_EQ(answer.stop_token_id, second);
  EXPECT_EQ(answer.finish_reason, MILLRACE_FINISH_STOP);
}

TEST_F(CapiTest, EverySamplingFieldArrives) {
  Greedy greedy(12);
  const std::vector<int32_t> plain = answers(chat(kCapitalAtOnce, greedy.params))[0].token_ids;
  const auto differs = [&](const char* field,
                           const std::function<void(millrace_sampling_params&)>& set) {
    millrace_sampling_params params = greedy.params;
    set(params);
    millrace_request_options options = chat(kCapitalAtOnce, params);
    EXPECT_NE(answers(options)[0].token_ids, plain) << field;
  };
  const millrace_text word = millrace_string("capital");
  differs("bad_words", [&](auto& p) { p.bad_words = &word, p.num_bad_words = 1; });
  const millrace_token_ids first = {plain.data(), 1};
  differs("bad_words_token_ids",
          [&](auto& p) { p.bad_words_token_ids = &first, p.num_bad_words_token_ids = 1; });
  const millrace_logit_bias bias = {plain[0], -100};
  differs("logit_bias", [&](auto& p) { p.logit_bias = &bias, p.num_logit_bias = 1; });
  const int32_t allowed[] = {plain[0], plain[2]};
  differs("allowed_token_ids", [&](auto& p) { p.allowed_token_ids = {allowed, 2}; });
  differs("repetition_penalty", [](auto& p) { p.repetition_penalty = 1000; });
  differs("temperature", [](auto& p) { p.temperature = 2; });
  differs("ignore_eos", [](auto& p) { p.ignore_eos = 1; });
  const uint64_t seed = 7;
  Greedy warm(12);
  warm.params.temperature = 2;
  warm.params.seed = &seed;
  const std::vector<int32_t> drawn = answers(chat(kCapitalAtOnce, warm.params))[0].token_ids;
  EXPECT_EQ(answers(chat(kCapitalAtOnce, warm.params))[0].token_ids, drawn);
  EXPECT_NE(drawn, plain);
  for (const char* field : {"top_k", "top_p", "min_p"}) {
    millrace_sampling_params params = warm.params;
    const std::string_view name = field;
    if (name == "top_k") params.top_k = 1;
    if (name == "top_p") params.top_p = 1e-9;
    if (name == "min_p") params.min_p = 1;
    EXPECT_EQ(answers(chat(kCapitalAtOnce, params))[0].token_ids, plain) << field;
  }
}

TEST_F(CapiTest, PenaltiesLengthsAndControlTokensArrive) {
  Greedy greedy(20);
  greedy.params.ignore_eos = 1;
  const Choice plain = answers(text("Once upon a time", greedy.params))[0];
  ASSERT_EQ(plain.token_ids.size(), 20u);
  millrace_sampling_params params = greedy.params;
  params.presence_penalty = 2;
  EXPECT_NE(answers(text("Once upon a time", params))[0].token_ids, plain.token_ids);
  params = greedy.params;
  params.frequency_penalty = 2;
  EXPECT_NE(answers(text("Once upon a time", params))[0].token_ids, plain.token_ids);
  params = greedy.params;
  const millrace_text stop = {plain.text.data(), 2};
  params.stop = &stop;
  params.num_stop = 1;
  EXPECT_EQ(answers(text("Once upon a time", params))[0].text, "");
  params.include_stop_str_in_output = 1;
  EXPECT_EQ(answers(text("Once upon a time", params))[0].text, plain.text.substr(0, 2));
  params.min_tokens = 20;
  EXPECT_EQ(answers(text("Once upon a time", params))[0].token_ids.size(), 20u);
  params = greedy.params;
  params.skip_special_tokens = 0;
  const int32_t bos = 0;
  params.allowed_token_ids = {&bos, 1};
  EXPECT_THAT(answers(text("Once upon a time", params))[0].text, HasSubstr("begin"));
  params.skip_special_tokens = 1;
  EXPECT_EQ(answers(text("Once upon a time", params))[0].text, "");
}

TEST_F(CapiTest, SeveralChoicesDifferAndTheDrawnSeedRepeatsThem) {
  Greedy warm(20);
  warm.params.temperature = 1.5;
  millrace_request_options options = chat(kCapitalAtOnce, warm.params);
  options.num_choices = 3;
  millrace_request* request = submit(options);
  millrace_request_info info = initialised(millrace_request_info_init);
  ASSERT_EQ(millrace_get_request_info(request, &info), MILLRACE_OK);
  EXPECT_EQ(info.num_choices, 3);
  const std::vector<Choice> first = read_all(request);
  millrace_request_destroy(request);
  EXPECT_NE(first[0].token_ids, first[1].token_ids);
  warm.params.seed = &info.seed;
  const std::vector<Choice> again = answers(options);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(again[i].token_ids, first[i].token_ids) << i;
}

TEST_F(CapiTest, WithoutSamplingTheModelsRecommendationCounts) {
  millrace_sampling_params params = initialised(millrace_sampling_params_init);
  ASSERT_EQ(millrace_default_sampling_params(engine_, &params), MILLRACE_OK);
  EXPECT_EQ(params.struct_size, sizeof params);
  EXPECT_GT(params.temperature, 0);
  EXPECT_EQ(params.max_tokens, nullptr);
  millrace_request_options options = initialised(millrace_request_options_init);
  options.chat_json = millrace_string(kCapitalAtOnce);
  EXPECT_EQ(answers(options)[0].finish_reason, MILLRACE_FINISH_STOP);
}

TEST_F(CapiTest, WithoutSamplingWhatTheChatSaysItselfCounts) {
  const auto with = [](const std::string& fields) {
    return R"({"thinking": false, "messages": [{"role": "user", "content": "Hi"}], )" + fields +
           "}";
  };
  const std::string json = with(R"("temperature": 0, "max_completion_tokens": 3, "n": 2,
                                   "logprobs": true)");
  millrace_request_options options = initialised(millrace_request_options_init);
  options.chat_json = millrace_string(json.c_str());
  const std::vector<Choice> own = answers(options);
  ASSERT_EQ(own.size(), 2u);
  EXPECT_EQ(own[0].token_ids.size(), 3u);
  EXPECT_EQ(own[0].logprobs.size(), 3u);
  EXPECT_EQ(own[1].token_ids, own[0].token_ids) << "the likeliest, both times";
  options.num_choices = 3;
  EXPECT_EQ(answers(options).size(), 3u) << "goes before the chat's, unless it is 1";
  options.num_choices = 1;

  // The structure stands for all of them.
  millrace_sampling_params params = initialised(millrace_sampling_params_init);
  const int64_t one = 1;
  params.max_tokens = &one;
  options.sampling = &params;
  const std::vector<Choice> given = answers(options);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].token_ids.size(), 1u);
  EXPECT_TRUE(given[0].logprobs.empty());

  const std::string wrong = with(R"("temperature": "hot")");
  options.sampling = nullptr;
  options.chat_json = millrace_string(wrong.c_str());
  millrace_request* request = nullptr;
  EXPECT_EQ(millrace_submit(engine_, &options, &request), MILLRACE_INVALID_ARGUMENT);
  EXPECT_THAT(millrace_last_error(), HasSubstr("temperature: found string \"hot\""));
}

TEST_F(CapiTest, TheEngineSaysWhatItIs) {
  millrace_engine_info info = initialised(millrace_engine_info_init);
  ASSERT_EQ(millrace_get_engine_info(engine_, &info), MILLRACE_OK);
  EXPECT_EQ(info.num_threads, 1);
  EXPECT_THAT(to_string(info.numerics_id), StartsWith("reference-"));
  EXPECT_FALSE(to_string(info.isa).empty());
  EXPECT_GT(info.vocab_size, 1000);
  EXPECT_GT(info.max_model_len, 1000);
  EXPECT_EQ(info.max_num_seqs, 256);
  EXPECT_GE(info.bos_token_id, 0);
  EXPECT_THAT(millrace_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

// ---- Text and tokens.

TEST_F(CapiTest, TextBecomesTokensAndTextAgain) {
  const millrace_text given = millrace_string("Genesis, caf\xc3\xa9");
  std::array<int32_t, 100> ids;
  size_t size = 0, length = 0;
  ASSERT_EQ(millrace_tokenize(engine_, given, 0, ids.data(), ids.size(), &size), MILLRACE_OK);
  std::array<char, 100> text;
  ASSERT_EQ(millrace_detokenize(engine_, {ids.data(), size}, 0, text.data(), text.size(), &length),
            MILLRACE_OK);
  EXPECT_EQ(std::string(text.data(), length), given.data);
  std::string bytes;
  for (size_t i = 0; i < size; ++i) {
    millrace_text token;
    ASSERT_EQ(millrace_token_bytes(engine_, ids[i], &token), MILLRACE_OK);
    bytes += to_string(token);
  }
  EXPECT_EQ(bytes, given.data);
}

TEST_F(CapiTest, ABufferThatIsTooSmallIsToldTheSizeItNeeds) {
  const millrace_text text = millrace_string("Once upon a time there was a mill.");
  size_t size = 0;
  EXPECT_EQ(millrace_tokenize(engine_, text, 0, nullptr, 0, &size), MILLRACE_EXHAUSTED);
  ASSERT_GT(size, 1u);
  std::vector<int32_t> ids(size, -1);
  EXPECT_EQ(millrace_tokenize(engine_, text, 0, ids.data(), size - 1, &size), MILLRACE_EXHAUSTED);
  EXPECT_THAT(millrace_last_error(), HasSubstr("ids: found capacity "));
  EXPECT_EQ(ids.back(), -1);
  EXPECT_EQ(millrace_tokenize(engine_, text, 0, ids.data(), size, &size), MILLRACE_OK);
  EXPECT_NE(ids.back(), -1);
}

TEST_F(CapiTest, OnlyTrustedTextMayHoldControlTokens) {
  const millrace_text text = millrace_string("<｜User｜>");
  std::array<int32_t, 100> ids;
  size_t trusted = 0, untrusted = 0, length = 0;
  ASSERT_EQ(millrace_tokenize(engine_, text, 0, ids.data(), ids.size(), &untrusted), MILLRACE_OK);
  ASSERT_EQ(
      millrace_tokenize(engine_, text, MILLRACE_TRUSTED_TEXT, ids.data(), ids.size(), &trusted),
      MILLRACE_OK);
  EXPECT_EQ(trusted, 1u);
  EXPECT_GT(untrusted, 1u);
  const auto detokenize = [&](uint32_t flags) {
    return millrace_detokenize(engine_, {ids.data(), 1}, flags, nullptr, 0, &length);
  };
  EXPECT_EQ(detokenize(0), MILLRACE_EXHAUSTED);
  EXPECT_EQ(length, strlen(text.data));
  EXPECT_EQ(detokenize(MILLRACE_SKIP_SPECIAL_TOKENS), MILLRACE_OK);
  EXPECT_EQ(length, 0u);
}

// ---- Time and threads.

TEST_F(CapiTest, PollingNeverWaitsAndLosesNothing) {
  Greedy greedy(100);
  millrace_request* request = submit(chat(kCapitalAtOnce, greedy.params));
  millrace_event event = initialised(millrace_event_init);
  std::string text;
  millrace_status status;
  while ((status = millrace_next_event(request, 0, &event)) != MILLRACE_END) {
    ASSERT_GE(status, 0) << millrace_last_error();
    if (status == MILLRACE_OK) text += to_string(event.text);
    if (status == MILLRACE_TIMED_OUT) std::this_thread::yield();
  }
  EXPECT_EQ(text, "The capital of France is Paris.");
  EXPECT_EQ(millrace_next_event(request, -1, &event), MILLRACE_END);
  EXPECT_EQ(millrace_next_event(request, INT64_MAX, &event), MILLRACE_END);
  millrace_request_destroy(request);
}

TEST_F(CapiTest, ACancelledRequestEndsEveryChoiceWithAbort) {
  Greedy greedy(4000);
  greedy.params.ignore_eos = 1;
  millrace_request_options options = chat(kCapitalAtOnce, greedy.params);
  options.num_choices = 2;
  millrace_request* request = submit(options);
  millrace_event event = initialised(millrace_event_init);
  while (millrace_next_event(request, -1, &event) == MILLRACE_OK && event.token_id < 0) {
  }
  std::thread([&] { EXPECT_EQ(millrace_cancel(request), MILLRACE_OK); }).join();
  for (const Choice& choice : read_all(request))
    EXPECT_EQ(choice.finish_reason, MILLRACE_FINISH_ABORT);
  EXPECT_EQ(millrace_cancel(request), MILLRACE_OK);  // too late, and no mistake
  millrace_request_destroy(request);
}

TEST_F(CapiTest, ARequestThatIsDestroyedHalfwayLeavesTheEngineUsable) {
  Greedy greedy(4000);
  greedy.params.ignore_eos = 1;
  for (int i = 0; i < 5; ++i) millrace_request_destroy(submit(chat(kCapitalAtOnce, greedy.params)));
  Greedy brief(100);
  EXPECT_EQ(answers(chat(kCapitalAtOnce, brief.params))[0].content,
            "The capital of France is Paris.");
}

TEST_F(CapiTest, ARequestThatIsOutOfTimeEnds) {
  Greedy greedy(4000);
  greedy.params.ignore_eos = 1;
  millrace_request_options options = chat(kCapitalAtOnce, greedy.params);
  options.timeout_ms = 1;
  EXPECT_EQ(answers(options)[0].finish_reason, MILLRACE_FINISH_TIMEOUT);
}

TEST_F(CapiTest, ManyThreadsAskAtOnceAndEachGetsItsOwnAnswer) {
  const char* const prompts[] = {"Once upon a time", "In the beginning", "The river"};
  const auto ask = [&](size_t i) {
    Greedy greedy(12);
    return answers(text(prompts[i], greedy.params))[0].token_ids;
  };
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < 3; ++i) alone.push_back(ask(i));
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong = 0;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < t + 3; ++i) num_wrong += ask(i % 3) != alone[i % 3];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST_F(CapiTest, ASecondReaderIsRefusedAndLosesNothing) {
  Greedy greedy(1000);
  greedy.params.ignore_eos = 1;
  millrace_request* request = submit(chat(kCapitalAtOnce, greedy.params));
  std::atomic<int> num_refused = 0, num_tokens = 0;
  const auto read = [&] {
    millrace_event event = initialised(millrace_event_init);
    for (;;) {
      const millrace_status status = millrace_next_event(request, -1, &event);
      if (status == MILLRACE_END) return;
      if (status == MILLRACE_OK) {
        num_tokens += event.token_id >= 0;
      } else {
        ++num_refused;
        EXPECT_THAT(millrace_last_error(), HasSubstr("two readers"));
      }
    }
  };
  std::thread reader(read);
  read();
  reader.join();
  EXPECT_GT(num_refused, 0);
  EXPECT_EQ(num_tokens, 1000);
  millrace_request_destroy(request);
}

struct Heard {
  std::atomic<int> num_calls = 0, num_allowed = 0;
  std::atomic<bool> is_destroyed = false, came_late = false;
  millrace_request* request = nullptr;
};

TEST_F(CapiTest, AListenerIsCalledUntilTheRequestIsGoneAndMayNotCallTheLibrary) {
  Heard heard;
  Greedy greedy(4000);
  greedy.params.ignore_eos = 1;
  millrace_request_options options = chat(kCapitalAtOnce, greedy.params);
  options.event_data = &heard;
  options.on_event = [](void* data) {
    auto& heard = *static_cast<Heard*>(data);
    ++heard.num_calls;
    heard.came_late = heard.came_late || heard.is_destroyed;
    millrace_engine_info info = {};
    heard.num_allowed += millrace_get_engine_info(engine_, &info) != MILLRACE_INVALID_ARGUMENT ||
                         std::string_view(millrace_last_error()).find("on_event") != 0;
  };
  millrace_request* request = submit(options);
  millrace_event event = initialised(millrace_event_init);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(millrace_next_event(request, -1, &event), MILLRACE_OK);
  EXPECT_GE(heard.num_calls, 4);  // the fifth may be on its way
  millrace_request_destroy(request);
  heard.is_destroyed = true;
  Greedy brief(20);
  answers(chat(kCapitalAtOnce, brief.params));
  EXPECT_FALSE(heard.came_late);
  EXPECT_EQ(heard.num_allowed, 0);
}

TEST_F(CapiTest, OneRequestTooManyIsRefusedAtOnce) {
  millrace_engine_options options = engine_options();
  options.max_num_seqs = 1;
  options.max_waiting = 1;
  options.kv_bytes = 64 << 20;
  millrace_engine* engine = create(options);
  Greedy greedy(2000);
  greedy.params.ignore_eos = 1;
  const millrace_request_options wish = chat(kCapitalAtOnce, greedy.params);
  std::vector<millrace_request*> open;
  millrace_request* request = nullptr;
  millrace_status status;
  while ((status = millrace_submit(engine, &wish, &request)) == MILLRACE_OK)
    open.push_back(request);
  EXPECT_EQ(status, MILLRACE_EXHAUSTED);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(open.size(), 2u);
  EXPECT_THAT(millrace_last_error(), HasSubstr("queue: found 2 requests"));
  for (millrace_request* one : open) millrace_request_destroy(one);
  millrace_engine_destroy(engine);
}

// ---- Ownership.

TEST_F(CapiTest, ARequestKeepsItsEngineAlive) {
  millrace_engine* engine = create();
  Greedy greedy(100);
  millrace_request* request = submit(chat(kCapitalAtOnce, greedy.params), engine);
  millrace_request* other = submit(chat(kCapitalAtOnce, greedy.params), engine);
  EXPECT_EQ(millrace_engine_destroy(engine), MILLRACE_OK);
  EXPECT_EQ(read_all(request)[0].content, "The capital of France is Paris.");
  EXPECT_EQ(millrace_request_destroy(request), MILLRACE_OK);
  EXPECT_EQ(millrace_request_destroy(other), MILLRACE_OK);
}

TEST_F(CapiTest, DestroyingNothingDoesNothing) {
  EXPECT_EQ(millrace_engine_destroy(nullptr), MILLRACE_OK);
  EXPECT_EQ(millrace_request_destroy(nullptr), MILLRACE_OK);
}

// Runs `check` in a child, which must come to its end in time; true: it returned true.
bool in_child(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(CapiTest, AChildMayNotUseTheHandlesOfItsParentButDestroyThem) {
  Greedy greedy(200);
  greedy.params.ignore_eos = 1;
  const millrace_request_options options = chat(kCapitalAtOnce, greedy.params);
  millrace_request* request = submit(options);
  millrace_engine* engine = create();
  EXPECT_TRUE(in_child([&] {
    const auto is_refused = [](millrace_status status) {
      return status == MILLRACE_UNAVAILABLE &&
             std::string_view(millrace_last_error()).find("after fork()") != std::string_view::npos;
    };
    millrace_request* other = nullptr;
    millrace_event event = initialised(millrace_event_init);
    millrace_engine_info info = initialised(millrace_engine_info_init);
    return is_refused(millrace_next_event(request, -1, &event)) &&
           is_refused(millrace_cancel(request)) &&
           is_refused(millrace_get_engine_info(engine, &info)) &&
           is_refused(millrace_submit(engine, &options, &other)) &&
           millrace_request_destroy(request) == MILLRACE_OK &&
           millrace_engine_destroy(engine) == MILLRACE_OK;
  }));
  EXPECT_EQ(read_all(request)[0].token_ids.size(), 200u);
  millrace_request_destroy(request);
  millrace_engine_destroy(engine);
}

TEST_F(CapiTest, AChildMayHaveAnEngineOfItsOwn) {
  Greedy greedy(100);
  const millrace_request_options options = chat(kCapitalAtOnce, greedy.params);
  EXPECT_TRUE(in_child([&] {
    millrace_engine* engine = create();
    const bool is_right = answers(options, engine)[0].content == "The capital of France is Paris.";
    return millrace_engine_destroy(engine) == MILLRACE_OK && is_right;
  }));
}

// ---- The caller's floating-point state.

#if defined(__x86_64__)
TEST_F(CapiTest, TheCallersFloatingPointStateIsKeptAndChangesNothing) {
  Greedy greedy(12);
  const int64_t num_top = 3;
  greedy.params.logprobs = &num_top;
  greedy.params.temperature = 0.7;
  const uint64_t seed = 5;
  greedy.params.seed = &seed;
  const auto ask = [&] {  // with an engine that is made in this state, too
    millrace_engine* engine = create();
    std::vector<Choice> choices = answers(chat(kCapital, greedy.params), engine);
    millrace_engine_destroy(engine);
    return std::move(choices[0]);
  };
  const Choice plain = ask();
  const uint32_t before = _mm_getcsr();
  // Flush to zero, denormals are zero, rounding towards zero, and a sticky flag.
  const uint32_t strange = 0x1f80 | 0x8000 | 0x0040 | 0x6000 | 0x0001;
  _mm_setcsr(strange);
  const Choice other = ask();
  const uint32_t after = _mm_getcsr();
  millrace_engine_create(nullptr, nullptr);
  const uint32_t after_error = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, strange);
  EXPECT_EQ(after_error, strange);
  EXPECT_EQ(other.token_ids, plain.token_ids);
  EXPECT_EQ(other.logprobs, plain.logprobs);
}
#endif

// ---- What is refused, and how it is called.

TEST_F(CapiTest, NullPointersAreRefusedByName) {
  millrace_engine* engine = nullptr;
  millrace_request* request = nullptr;
  millrace_engine_options options = engine_options();
  millrace_engine_info info = initialised(millrace_engine_info_init);
  millrace_sampling_params params = initialised(millrace_sampling_params_init);
  millrace_request_options wish = text("Once", params);
  millrace_event event = initialised(millrace_event_init);
  millrace_request_info request_info = initialised(millrace_request_info_init);
  millrace_text bytes = {};
  millrace_reply_start start = 0;
  size_t size = 0;
  const millrace_text once = millrace_string("Once");
  const auto expect = [](millrace_status status, std::string_view name) {
    EXPECT_EQ(status, MILLRACE_INVALID_ARGUMENT) << name;
    EXPECT_THAT(millrace_last_error(), StartsWith(std::string(name) + ": found NULL")) << name;
  };
  expect(millrace_engine_create(&options, nullptr), "engine");
  expect(millrace_engine_create(nullptr, &engine), "options");
  options.model_dir = nullptr;
  expect(millrace_engine_create(&options, &engine), "model_dir");
  EXPECT_EQ(engine, nullptr);
  expect(millrace_get_engine_info(nullptr, &info), "engine");
  expect(millrace_get_engine_info(engine_, nullptr), "info");
  expect(millrace_tokenize(nullptr, once, 0, nullptr, 0, &size), "engine");
  expect(millrace_tokenize(engine_, once, 0, nullptr, 7, &size), "ids");
  expect(millrace_tokenize(engine_, once, 0, nullptr, 0, nullptr), "size");
  expect(millrace_tokenize(engine_, {nullptr, 4}, 0, nullptr, 0, &size), "text");
  expect(millrace_detokenize(nullptr, {nullptr, 0}, 0, nullptr, 0, &size), "engine");
  expect(millrace_detokenize(engine_, {nullptr, 3}, 0, nullptr, 0, &size), "ids");
  expect(millrace_detokenize(engine_, {nullptr, 0}, 0, nullptr, 9, &size), "text");
  expect(millrace_token_bytes(nullptr, 0, &bytes), "engine");
  expect(millrace_token_bytes(engine_, 0, nullptr), "bytes");
  expect(millrace_encode_chat(engine_, once, nullptr, 0, &size, nullptr), "reply_start");
  expect(millrace_encode_chat(nullptr, once, nullptr, 0, &size, &start), "engine");
  expect(millrace_default_sampling_params(nullptr, &params), "engine");
  expect(millrace_default_sampling_params(engine_, nullptr), "params");
  expect(millrace_submit(nullptr, &wish, &request), "engine");
  expect(millrace_submit(engine_, nullptr, &request), "options");
  expect(millrace_submit(engine_, &wish, nullptr), "request");
  expect(millrace_cancel(nullptr), "request");
  expect(millrace_get_request_info(nullptr, &request_info), "request");
  expect(millrace_next_event(nullptr, 0, &event), "request");
  request = submit(wish);
  expect(millrace_get_request_info(request, nullptr), "info");
  expect(millrace_next_event(request, 0, nullptr), "event");
  millrace_request_destroy(request);
}

TEST_F(CapiTest, ListsWithoutAPointerAreRefusedByName) {
  const auto expect = [](std::string_view name, auto set) {
    millrace_sampling_params params = initialised(millrace_sampling_params_init);
    set(params);
    EXPECT_THAT(refused(text("Once", params)),
                StartsWith(std::string(name) + ": found NULL with size"));
  };
  expect("stop", [](auto& p) { p.num_stop = 1; });
  expect("bad_words", [](auto& p) { p.num_bad_words = 1; });
  expect("bad_words_token_ids", [](auto& p) { p.num_bad_words_token_ids = 1; });
  expect("logit_bias", [](auto& p) { p.num_logit_bias = 1; });
  expect("stop_token_ids", [](auto& p) { p.stop_token_ids.size = 1; });
  expect("allowed_token_ids", [](auto& p) { p.allowed_token_ids.size = 1; });
  const millrace_text nothing = {nullptr, 1};
  expect("stop[0]", [&](auto& p) { p.stop = &nothing, p.num_stop = 1; });
}

TEST_F(CapiTest, AHandleOfTheWrongKindIsRefused) {
  millrace_sampling_params params = initialised(millrace_sampling_params_init);
  millrace_request* request = submit(text("Once", params));
  millrace_engine_info info = initialised(millrace_engine_info_init);
  EXPECT_EQ(millrace_get_engine_info(reinterpret_cast<millrace_engine*>(request), &info),
            MILLRACE_INVALID_ARGUMENT);
  EXPECT_THAT(millrace_last_error(), HasSubstr("engine: found another kind of handle"));
  EXPECT_EQ(millrace_engine_destroy(reinterpret_cast<millrace_engine*>(request)),
            MILLRACE_INVALID_ARGUMENT);
  EXPECT_EQ(millrace_request_destroy(reinterpret_cast<millrace_request*>(engine_)),
            MILLRACE_INVALID_ARGUMENT);
  EXPECT_THAT(millrace_last_error(), HasSubstr("request: found another kind of handle"));
  millrace_request_destroy(request);
}

TEST_F(CapiTest, RequestsWithoutSenseAreRefusedByField) {
  const auto expect = [](std::string_view message, auto set) {
    Greedy greedy(5);
    millrace_request_options options = text("Once", greedy.params);
    set(options, greedy.params);
    EXPECT_THAT(refused(options), HasSubstr(std::string(message)));
  };
  const int32_t one = 1;
  const int64_t minus = -2;
  expect("temperature: found 3", [](auto&, auto& s) { s.temperature = 3; });
  expect("temperature: found nan", [](auto&, auto& s) { s.temperature = NAN; });
  expect("top_p: found 0", [](auto&, auto& s) { s.top_p = 0; });
  expect("logprobs: found -2", [&](auto&, auto& s) { s.logprobs = &minus; });
  expect("max_tokens: found -2", [&](auto&, auto& s) { s.max_tokens = &minus; });
  expect("n: found 0, expected 1 to 128", [](auto& o, auto&) { o.num_choices = 0; });
  expect("n: found -1", [](auto& o, auto&) { o.num_choices = -1; });
  expect("timeout: found -1", [](auto& o, auto&) { o.timeout_ms = -1; });
  expect("options.reserved: found 1", [](auto& o, auto&) { o.reserved = 1; });
  expect("text_flags: found 8", [](auto& o, auto&) { o.text_flags = 8; });
  expect("prompt: found 0 of", [](auto& o, auto&) { o.text = {}; });
  expect("prompt: found 2 of", [&](auto& o, auto&) { o.token_ids = {&one, 1}; });
  expect("reply_start: found 1, expected 0 without", [](auto& o, auto&) { o.reply_start = 1; });
  expect("reply_start: found 9", [&](auto& o, auto&) {
    o.text = {};
    o.token_ids = {&one, 1};
    o.reply_start = 9;
  });
  const int32_t minus_one = -1;
  expect("prompt: found token id -1", [&](auto& o, auto&) {
    o.text = {};
    o.token_ids = {&minus_one, 1};
  });
  expect("messages", [](auto& o, auto&) {
    o.text = {};
    o.chat_json = millrace_string("{}");
  });
  expect("text: found size 18446744073709551615", [](auto& o, auto&) { o.text.size = SIZE_MAX; });
}

TEST_F(CapiTest, EnginesWithoutSenseAreRefusedByField) {
  const auto expect = [](millrace_status status, std::string_view message, auto set) {
    millrace_engine_options options = engine_options();
    set(options);
    millrace_engine* engine = engine_;
    EXPECT_EQ(millrace_engine_create(&options, &engine), status) << message;
    EXPECT_EQ(engine, nullptr);
    EXPECT_THAT(millrace_last_error(), HasSubstr(std::string(message)));
  };
  const auto kInvalid = MILLRACE_INVALID_ARGUMENT;
  expect(MILLRACE_NOT_FOUND, "/nowhere", [](auto& o) { o.model_dir = "/nowhere"; });
  expect(kInvalid, "numerics: found 2", [](auto& o) { o.numerics = 2; });
  expect(kInvalid, "found \"PDP11\"", [](auto& o) { o.isa = "PDP11"; });
  expect(kInvalid, "threads: found -1", [](auto& o) { o.num_threads = -1; });
  expect(kInvalid, "chunk: found 0", [](auto& o) { o.prefill_chunk = 0; });
  expect(kInvalid, "max_model_len: found -1", [](auto& o) { o.max_model_len = -1; });
  expect(kInvalid, "max_num_seqs: found 0", [](auto& o) { o.max_num_seqs = 0; });
  expect(kInvalid, "max_num_batched_tokens: found 0",
         [](auto& o) { o.max_num_batched_tokens = 0; });
  expect(kInvalid, "max_waiting: found 0", [](auto& o) { o.max_waiting = 0; });
  expect(kInvalid, "kv_bytes: found -1", [](auto& o) { o.kv_bytes = -1; });
  expect(kInvalid, "max_step_ms: found 0", [](auto& o) { o.max_step_ms = 0; });
  expect(kInvalid, "expert_cache_bytes: found -2", [](auto& o) { o.expert_cache_bytes = -2; });
  expect(kInvalid, "expert cache: found 1 bytes", [](auto& o) { o.expert_cache_bytes = 1; });
  expect(kInvalid, "options.reserved: found 3", [](auto& o) { o.reserved = 3; });
}

TEST_F(CapiTest, LoadingTellsHowFarItIs) {
  millrace_engine_options options = engine_options();
  std::vector<int64_t> done;
  options.progress_data = &done;
  options.on_progress = [](void* data, int64_t num_done, int64_t num_files) {
    static_cast<std::vector<int64_t>*>(data)->push_back(num_files - num_done);
  };
  millrace_engine_destroy(create(options));
  ASSERT_FALSE(done.empty());
  EXPECT_EQ(done.back(), 0);
}

TEST_F(CapiTest, AnErrorIsTheThreadsOwn) {
  millrace_cancel(nullptr);
  EXPECT_THAT(millrace_last_error(), StartsWith("request: "));
  std::thread([] { EXPECT_STREQ(millrace_last_error(), ""); }).join();
  EXPECT_STREQ(millrace_status_name(MILLRACE_EXHAUSTED), "exhausted");
  EXPECT_STREQ(millrace_status_name(99), "unknown status");
  EXPECT_STREQ(millrace_finish_reason_name(MILLRACE_FINISH_NONE), "");
}

}  // namespace
