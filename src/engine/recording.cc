#include "engine/recording.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

constexpr uint64_t kFnvPrime = 0x100000001b3;
constexpr std::string_view kSumKey = ",\"sum\":\"";
constexpr size_t kSumDigits = 16;
// `,"sum":"0123456789abcdef"}`
constexpr size_t kSumBytes = kSumKey.size() + kSumDigits + 2;

// FNV-1a: finds what is damaged, not who did it.
uint64_t add_to_sum(uint64_t sum, std::string_view bytes) {
  for (const char byte : bytes) sum = (sum ^ uint8_t(byte)) * kFnvPrime;
  return sum;
}

std::string hex(uint64_t sum) {
  char digits[kSumDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(sum));
  return digits;
}

constexpr Code kCodes[] = {Code::kInvalidArgument, Code::kNotFound,    Code::kCorrupt,
                           Code::kExhausted,       Code::kUnavailable, Code::kCancelled};

// ---- The members of each record, in their order. Written and read by the same functions, so what
// is written can be read: Io is Writer or Reader.

template <class Io>
void members(Io& io, typename Io::template Of<ModelIdentity> model) {
  io.member("config_sha256", model.config_sha256);
  io.member("tensors_sha256", model.tensors_sha256);
}

template <class Io>
void members(Io& io, typename Io::template Of<LayerReach> reach) {
  io.member("num_layers", reach.num_layers);
  io.member("sliding_window", reach.sliding_window);
  io.member("kv_source_layer_ids", reach.kv_source_layer_ids);
}

template <class Io>
void members(Io& io, typename Io::template Of<SchedulerOptions> options) {
  io.member("max_num_seqs", options.max_num_seqs);
  io.member("max_num_batched_tokens", options.max_num_batched_tokens);
  io.member("max_prefill_chunk", options.max_prefill_chunk);
  io.member("max_step_ms", options.max_step_ms);
  io.member("min_prefill_rows", options.min_prefill_rows);
  io.member("max_waiting", options.max_waiting);
  io.member("max_model_len", options.max_model_len);
  io.member("num_blocks", options.num_blocks);
  io.member("block_size", options.block_size);
  io.member("admission_headroom_blocks", options.admission_headroom_blocks);
  io.member("paused_grace_ms", options.paused_grace_ms);
  io.member("prefix_caching", options.prefix_caching);
  io.member("max_num_snapshots", options.max_num_snapshots);
  io.member("exact_replay", options.exact_replay);
  io.member("layer_reach", options.layer_reach);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordingHeader> header) {
  io.member("version", header.version);
  io.expect(header.version == kRecordingVersion, "version", header.version, kRecordingVersion);
  io.member("numerics", header.numerics);
  io.member("numerics_id", header.numerics_id);
  io.member("isa", header.isa);
  io.member("num_threads", header.num_threads);
  io.member("model", header.model);
  io.member("vocab_size", header.vocab_size);
  io.member("eos_token_ids", header.eos_token_ids);
  io.member("scheduler", header.scheduler);
}

template <class Io>
void members(Io& io, typename Io::template Of<SamplingParams> sampling) {
  io.member("temperature", sampling.temperature);
  io.member("top_k", sampling.top_k);
  io.member("top_p", sampling.top_p);
  io.member("min_p", sampling.min_p);
  io.member("presence_penalty", sampling.presence_penalty);
  io.member("frequency_penalty", sampling.frequency_penalty);
  io.member("repetition_penalty", sampling.repetition_penalty);
  io.member("logit_bias", sampling.logit_bias);
  io.member("allowed_token_ids", sampling.allowed_token_ids);
  io.member("bad_words_token_ids", sampling.bad_words_token_ids);
  io.member("seed", sampling.seed);
  io.member("stop_token_ids", sampling.stop_token_ids);
  io.member("stop", sampling.stop);
  io.member("include_stop_str_in_output", sampling.include_stop_str_in_output);
  io.member("skip_special_tokens", sampling.skip_special_tokens);
  io.member("ignore_eos", sampling.ignore_eos);
  io.member("min_tokens", sampling.min_tokens);
  io.member("max_tokens", sampling.max_tokens);
  io.member("logprobs", sampling.logprobs);
  io.member("prompt_logprobs", sampling.prompt_logprobs);
}

template <class Io>
void members(Io& io, typename Io::template Of<StopScope> scope) {
  io.member("begin_after_token_id", scope.begin_after_token_id);
  io.member("end_at_token_id", scope.end_at_token_id);
}

template <class Io>
void members(Io& io, typename Io::template Of<Request> request) {
  io.member("request_id", request.request_id);
  io.member("prompt_token_ids", request.prompt_token_ids);
  io.member("sampling", request.sampling);
  io.member("stop_scope", request.stop_scope);
  io.member("choice_idx", request.choice_idx);
  io.member("num_choices", request.num_choices);
  io.member("priority", request.priority);
  io.member("fairness_key", request.fairness_key);
  io.member("cache_salt", request.cache_salt);
  io.member("timeout_ms", request.timeout_ms);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedArrival> arrival) {
  io.member("handle", arrival.handle);
  io.member("now_ms", arrival.now_ms);
  io.member("request", arrival.request);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedCancel> cancel) {
  io.member("handle", cancel.handle);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedPause> pause) {
  io.member("handle", pause.handle);
  io.member("is_paused", pause.is_paused);
  io.member("now_ms", pause.now_ms);
}

template <class Io>
void members(Io&, typename Io::template Of<RecordedReset>) {}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedPlan> plan) {
  io.member("step_id", plan.step_id);
  io.member("now_ms", plan.now_ms);
  io.member("rows", plan.rows);  // [sequence_id, first_position, num_rows, num_samples] each
  io.member("placement", plan.placement);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedToken> token) {
  io.member("id", token.token_id);
  io.member("bytes", token.bytes);
  io.member("is_control", token.is_control);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedError> error) {
  io.member("rows_idx", error.rows_idx);
  io.member("sample_idx", error.sample_idx);
  io.member("code", error.code);
  io.member("message", error.message);
}

template <class Io>
void members(Io& io, typename Io::template Of<RecordedResult> result) {
  io.member("elapsed_ms", result.elapsed_ms);
  io.member("abandoned", result.abandoned);
  io.member("new_tokens", result.new_tokens);
  io.member("token_ids", result.token_ids);
  io.member("errors", result.errors);
}

template <class Io>
void members(Io&, typename Io::template Of<RecordingEnd>) {}

// By the index of Record's alternatives.
constexpr const char* kKinds[] = {"header", "arrival", "cancel", "pause", "reset", "plan", "result", "end"};
static_assert(std::size(kKinds) == std::variant_size_v<Record>);

// ---- Writing.

class Writer {
 public:
  template <class T>
  using Of = const T&;

  explicit Writer(std::string& out) : out_(out) {}

  template <class T>
  void member(const char* name, const T& item) {
    if (out_.back() != '{') out_ += ',';
    out_.append("\"").append(name).append("\":");
    value(item);
  }

  template <class T>
  void object(const T& item) {
    out_ += '{';
    members(*this, item);
    out_ += '}';
  }

  void expect(bool holds, const char*, int64_t, int64_t) { MR_CHECK(holds); }

 private:
  template <class T>
  void value(const T& item) {
    if constexpr (std::is_arithmetic_v<T>) {
      char digits[32];
      out_.append(digits, std::to_chars(digits, std::end(digits), item).ptr);
    } else {
      object(item);
    }
  }
  void value(bool item) { out_ += item ? "true" : "false"; }
  void value(Code item) { value(std::string(code_name(item))); }

  // Any bytes: byte n is the character U+00nn.
  void value(const std::string& item) {
    constexpr char kHex[] = "0123456789abcdef";
    out_ += '"';
    for (const char c : item) {
      const uint8_t byte = uint8_t(c);
      if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
        out_ += c;
      } else {
        out_.append("\\u00").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
      }
    }
    out_ += '"';
  }

  void value(const RecordedRows& rows) {
    out_ += '[';
    for (const int64_t number :
         {rows.sequence_id, rows.first_position, rows.num_rows, rows.num_samples}) {
      if (out_.back() != '[') out_ += ',';
      value(number);
    }
    out_ += ']';
  }

  void value(const std::pair<int32_t, double>& item) {
    out_ += '[';
    value(item.first);
    out_ += ',';
    value(item.second);
    out_ += ']';
  }

  template <class T>
  void value(const std::optional<T>& item) {
    if (item) {
      value(*item);
    } else {
      out_ += "null";
    }
  }

  template <class T>
  void value(const std::vector<T>& items) {
    out_ += '[';
    bool is_first = true;
    for (const T& item : items) {
      if (!std::exchange(is_first, false)) out_ += ',';
      value(item);
    }
    out_ += ']';
  }

  std::string& out_;
};

// ---- Reading. Only what Writer writes is understood: no blanks, every member in its place.

class Reader {
 public:
  template <class T>
  using Of = T&;

  explicit Reader(std::string_view text) : text_(text) {}

  bool has_failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  bool at_end() const { return at_ == text_.size(); }

  template <class T>
  void member(const char* name, T& item) {
    // At the start of an object, or behind another member.
    if (at_ > 0 && at_ <= text_.size() && text_[at_ - 1] != '{') take(",");
    take("\"");
    take(name);
    take("\":");
    value(item);
  }

  template <class T>
  void object(T& item) {
    take("{");
    members(*this, item);
    take("}");
  }

  void expect(bool holds, const char* what, int64_t found, int64_t expected) {
    if (!holds && !has_failed()) error_ = format(what, ": found ", found, ", expected ", expected);
  }

  // Whether this comes next; then it is behind us.
  bool skip(std::string_view literal) {
    if (has_failed() || !text_.substr(at_).starts_with(literal)) return false;
    at_ += literal.size();
    return true;
  }

  void take(std::string_view literal) {
    if (!skip(literal)) fail(format("expected ", literal));
  }

  void fail(const std::string& expected) {
    if (has_failed()) return;
    constexpr size_t kMostShown = 24;
    std::string found(text_.substr(at_, kMostShown));
    for (char& c : found) c = c >= 0x20 && c < 0x7f ? c : '?';
    error_ = format("byte ", at_ + 1, ": found ", found.empty() ? "nothing" : found, ", ", expected);
  }

 private:
  template <class T>
  void value(T& item) {
    if constexpr (std::is_arithmetic_v<T>) {
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), item);
      bool is_number = error == std::errc();
      if constexpr (std::is_floating_point_v<T>) is_number = is_number && std::isfinite(item);
      if (!is_number) {
        const char* kind = std::is_floating_point_v<T> ? "a number" : "an integer";
        return fail(format("expected ", kind, " of ", 8 * sizeof(T), " bits"));
      }
      at_ += size_t(end - begin);
    } else {
      object(item);
    }
  }

  void value(bool& item) {
    item = skip("true");
    if (!item) take("false");
  }

  void value(Code& item) {
    std::string name;
    value(name);
    const auto found = std::find_if(std::begin(kCodes), std::end(kCodes),
                                    [&](Code code) { return code_name(code) == name; });
    if (found == std::end(kCodes)) return fail("expected the name of a code before it");
    item = *found;
  }

  void value(std::string& item) {
    item.clear();
    take("\"");
    while (!has_failed() && !skip("\"")) {
      if (skip("\\u00")) {
        const std::string_view digits = text_.substr(at_, 2);
        uint8_t byte = 0;
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
        if (error != std::errc() || end != digits.data() + 2) return fail("expected two hex digits");
        item += char(byte);
        at_ += 2;
      } else if (at_ < text_.size() && text_[at_] != '\\' && uint8_t(text_[at_]) >= 0x20 &&
                 uint8_t(text_[at_]) < 0x7f) {
        item += text_[at_++];
      } else {
        fail("expected a character of ASCII, \\u00.. or \"");
      }
    }
  }

  void value(RecordedRows& rows) {
    const char* before = "[";
    for (int64_t* number :
         {&rows.sequence_id, &rows.first_position, &rows.num_rows, &rows.num_samples}) {
      take(std::exchange(before, ","));
      value(*number);
    }
    take("]");
  }

  void value(std::pair<int32_t, double>& item) {
    take("[");
    value(item.first);
    take(",");
    value(item.second);
    take("]");
  }

  template <class T>
  void value(std::optional<T>& item) {
    item.reset();
    if (!skip("null")) value(item.emplace());
  }

  template <class T>
  void value(std::vector<T>& items) {
    items.clear();
    take("[");
    if (skip("]")) return;
    do {
      value(items.emplace_back());
    } while (skip(","));
    take("]");
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string error_;  // the first one; nothing is read behind it
};

template <size_t kIdx = 0>
void read_kind(Reader& reader, Record& record) {
  if constexpr (kIdx == std::variant_size_v<Record>) {
    reader.fail("expected a kind of record");
  } else if (reader.skip(format("{\"", kKinds[kIdx], "\":"))) {
    reader.object(record.emplace<kIdx>());
  } else {
    read_kind<kIdx + 1>(reader, record);
  }
}

}  // namespace

uint64_t placement_digest(const StepPlan& plan) {
  uint64_t digest = kFirstSum;
  const auto add = [&](int64_t number) { digest = (digest ^ uint64_t(number)) * kFnvPrime; };
  add(int64_t(plan.finished.size()));
  for (const SequenceId id : plan.finished) add(id);
  add(int64_t(plan.started.size()));
  for (const StartedRequest& started : plan.started) {
    add(started.first_sequence_id);
    add(started.num_choices);
    add(started.max_tokens);
  }
  add(int64_t(plan.state_copies.size()));
  for (const StateCopy& copy : plan.state_copies) {
    add(copy.from);
    add(copy.to);
  }
  add(int64_t(plan.block_copies.size()));
  for (const BlockCopy& copy : plan.block_copies) {
    add(copy.from);
    add(copy.to);
  }
  for (const PlannedRows& rows : plan.rows) {
    add(rows.state_slot);
    add(rows.prompt_logprobs);
    add(rows.num_cached_tokens);
    add(rows.first_output);
    add(int64_t(rows.block_table.size()));
    if (!rows.block_table.empty()) add(rows.block_table.back());
  }
  return digest;
}

void append_sum(size_t begin, uint64_t& sum, std::string& text) {
  sum = add_to_sum(sum, std::string_view(text).substr(begin));
  text.append(kSumKey).append(hex(sum)).append("\"}\n");
}

void append_record(const Record& record, uint64_t& sum, std::string& text) {
  const size_t begin = text.size();
  text.append("{\"").append(kKinds[record.index()]).append("\":");
  std::visit([&](const auto& item) { Writer(text).object(item); }, record);
  append_sum(begin, sum, text);
}

Error RecordingReader::error(const std::string& what) const {
  return {Code::kCorrupt, format("line ", line_, ": ", what)};
}

Result<std::optional<Record>> RecordingReader::next() {
  const size_t line_bytes = text_.find('\n');
  if (line_bytes == text_.npos) {
    if (line_ == 0) return Error{Code::kCorrupt, "found no whole line, expected a recording"};
    return std::optional<Record>();
  }
  ++line_;
  if (has_ended_) return error("found a record, expected nothing behind the end of the run");
  const std::string_view line = text_.substr(0, line_bytes);
  if (line.size() > kMaxRecordBytes) {
    return error(format("found ", line.size(), " bytes, expected at most ", kMaxRecordBytes));
  }
  const std::string_view body = line.substr(0, line.size() - std::min(line.size(), kSumBytes));
  // What kind of file it is comes before what is wrong with it.
  if (line_ == 1 && !body.starts_with("{\"header\":{\"version\":")) {
    return error("found something else, expected the header of a recording");
  }
  Reader reader(body);
  std::optional<Record> record(std::in_place);
  read_kind(reader, *record);
  const uint64_t sum = add_to_sum(sum_, body);
  const std::string expected = format(kSumKey, hex(sum), "\"}");
  const std::string_view found = line.substr(body.size());
  const bool is_other_version =
      line_ == 1 && std::holds_alternative<RecordingHeader>(*record) &&
      std::get<RecordingHeader>(*record).version != kRecordingVersion;
  if (found != expected && !is_other_version) {
    return error(format("checksum: found ", found, ", expected ", expected));
  }
  if (!reader.has_failed() && !reader.at_end()) reader.fail("expected the checksum");
  if (reader.has_failed()) return error(reader.error());
  if (std::holds_alternative<RecordingHeader>(*record) != (line_ == 1)) {
    return error("found a second header, expected what happened in the run");
  }
  has_ended_ = std::holds_alternative<RecordingEnd>(*record);
  sum_ = sum;
  text_.remove_prefix(line_bytes + 1);
  return record;
}

}  // namespace millrace
