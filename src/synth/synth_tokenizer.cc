#include "synth/synth_tokenizer.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "chat/wire_text.h"
#include "tokenizer/token_map.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace millrace {
namespace {

namespace json = boost::json;

constexpr const char* kSplitPatterns[] = {
    R"(\p{N}{1,3})",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
     R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
};

struct ControlToken {
  int64_t id;
  std::string_view literal;
};

// A token of the vocabulary and, if it is a word, the merge that makes it.
struct Word {
  std::string spelling, left, right;
};

std::string spelling_of(unsigned char byte) {
  std::string spelling;
  append_utf8(byte_level_character(byte), spelling);
  return spelling;
}

// Word `index` of those over a to z with at least two letters, in order of length.
std::string word_at(int64_t index) {
  int64_t length = 2, count = 26 * 26;
  for (; index >= count; ++length, count *= 26) index -= count;
  std::string word(size_t(length), 'a');
  for (size_t i = word.size(); i-- > 0; index /= 26) word[i] = char('a' + index % 26);
  return word;
}

enum class Form { kPlain, kBlank, kCapital, kBlankCapital, kUpper, kBlankUpper };
constexpr int64_t kNumForms = 6;

// Every form folds to the plain one. Letters are added one by one, so a word needs its shorter
// prefix in the same form; behind a blank stands the whole word without it.
Word word_in_form(std::string word, Form form) {
  const bool has_blank =
      form == Form::kBlank || form == Form::kBlankCapital || form == Form::kBlankUpper;
  const auto to_upper = [](char& c) { c = char(c - 'a' + 'A'); };
  if (form == Form::kCapital || form == Form::kBlankCapital) to_upper(word[0]);
  if (form == Form::kUpper || form == Form::kBlankUpper) std::ranges::for_each(word, to_upper);
  if (has_blank) return {spelling_of(' ') + word, spelling_of(' '), word};
  return {word, word.substr(0, word.size() - 1), word.substr(word.size() - 1)};
}

std::vector<ControlToken> fixed_tokens(const ModelConfig& config) {
  std::vector<ControlToken> tokens = {{config.bos_token_id, wire::kBos},
                                      {config.eos_token_id, wire::kEos},
                                      {config.pad_token_id, kPadLiteral}};
  if (config.image_token_id >= 0) tokens.push_back({config.image_token_id, wire::kImage});
  return tokens;
}

std::vector<std::string_view> other_literals() {
  std::vector<std::string_view> literals = {
      wire::kSystem, wire::kUser,     wire::kAssistant, wire::kLatestReminder,
      wire::kThink,  wire::kEndThink, wire::kDsml};
  for (const wire::Task& task : wire::kTasks) literals.push_back(task.token);
  return literals;
}

// The control tokens with their ids: the config's, and the last free ones. Then the words with
// the ids that are left, ascending.
std::string tokenizer_json(int64_t vocab_size, std::vector<ControlToken> control,
                           const std::vector<Word>& words) {
  std::set<int64_t> taken;
  for (const ControlToken& token : control) taken.insert(token.id);
  int64_t last = vocab_size;
  for (const std::string_view literal : other_literals()) {
    while (taken.contains(--last)) {
    }
    taken.insert(last);
    control.push_back({last, literal});
  }
  std::ranges::sort(control, {}, &ControlToken::id);

  json::object vocab;
  vocab.reserve(size_t(vocab_size));
  json::array added, merges;
  for (const auto& [id, literal] : control) {
    const json::string content(literal.data(), literal.size());
    vocab[content] = id;  // there, too, or common libraries number it anew
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  int64_t next = -1;
  const auto add = [&](const std::string& spelling) {
    while (taken.contains(++next)) {
    }
    vocab[spelling] = next;
  };
  for (int byte = 0; byte < 256; ++byte) add(spelling_of(static_cast<unsigned char>(byte)));
  for (const Word& word : words) {
    add(word.spelling);
    merges.push_back(json::string(word.left + " " + word.right));
  }
  MR_CHECK_OP(int64_t(vocab.size()), ==, vocab_size);

  json::array splits;
  for (const char* pattern : kSplitPatterns) {
    splits.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  splits.push_back({{"type", "ByteLevel"},
                    {"add_prefix_space", false},
                    {"trim_offsets", true},
                    {"use_regex", false}});
  const json::object root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}}},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "ByteLevel"},
        {"add_prefix_space", true},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", std::move(vocab)},
        {"merges", std::move(merges)}}}};
  return json::serialize(root);
}

int64_t num_compressed(const std::string& tokenizer_json) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(tokenizer_json);
  MR_CHECK(tokenizer.has_value());
  return make_token_map(tokenizer.value()).compressed_vocab_size;
}

}  // namespace

Result<SynthTokenizer> make_tokenizer(const ModelConfig& config,
                                      std::optional<int64_t> compressed_vocab_size) {
  const std::vector<ControlToken> fixed = fixed_tokens(config);
  std::set<int64_t> ids;
  for (const ControlToken& token : fixed) ids.insert(token.id);
  if (ids.size() != fixed.size()) {
    return Error{Code::kInvalidArgument,
                 "bos_token_id, eos_token_id, pad_token_id and image_token_id: found the same id "
                 "twice, expected one for each"};
  }
  const int64_t vocab_size = config.vocab_size;
  const auto smallest = int64_t(256 + fixed.size() + other_literals().size());
  if (vocab_size < smallest) {
    return Error{Code::kInvalidArgument,
                 format("vocab_size: found ", vocab_size, ", expected at least ", smallest,
                        ": the bytes and the control tokens")};
  }
  // What bytes and control tokens fold to does not depend on their ids.
  std::vector<ControlToken> packed = fixed;
  for (size_t i = 0; i < packed.size(); ++i) packed[i].id = int64_t(i);
  const int64_t base_compressed = num_compressed(tokenizer_json(smallest, packed, {}));

  const int64_t num_words = vocab_size - smallest;
  const int64_t least = base_compressed + (num_words + kNumForms - 1) / kNumForms;
  const int64_t most = base_compressed + num_words;
  const int64_t wanted = compressed_vocab_size.value_or(base_compressed + (3 * num_words + 3) / 4);
  if (wanted < least || wanted > most) {
    return Error{Code::kInvalidArgument,
                 format("engram_compressed_vocab_size: found ", wanted, ", expected ", least,
                        " to ", most, " for a tokenizer of ", vocab_size, " tokens")};
  }
  const int64_t num_plain = wanted - base_compressed;
  std::vector<Word> words;
  words.reserve(size_t(num_words));
  for (int64_t form = 0; form < kNumForms; ++form) {
    const int64_t count = std::min(num_plain, num_words - int64_t(words.size()));
    for (int64_t i = 0; i < count; ++i) words.push_back(word_in_form(word_at(i), Form(form)));
  }
  SynthTokenizer tokenizer{tokenizer_json(vocab_size, fixed, words), wanted};
  MR_CHECK_OP(num_compressed(tokenizer.json), ==, wanted);
  return tokenizer;
}

}  // namespace millrace
