#include "tokenizer/tokenizer_json.h"

#include <bit>
#include <boost/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/format.h"
#include "json/document.h"
#include "tokenizer/utf8.h"

namespace millrace {
namespace {

namespace bj = boost::json;

// The released file nests 5 levels deep.
constexpr JsonFileLimits kLimits = {.max_bytes = kMaxTokenizerJsonBytes, .max_depth = 16};

// The three patterns of splitter.h as the file spells them, with CR and LF escaped.
constexpr std::string_view kSplitPatterns[] = {
    R"(\p{N}{1,3})",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

std::string_view view(const bj::string& s) { return {s.data(), s.size()}; }

Error wrong(std::string_view key, const bj::value* found, std::string_view expected) {
  return Error{Code::kCorrupt, format(key, ": found ", describe(found), ", expected ", expected)};
}

Result<const bj::object*> object_at(const bj::value* value, std::string_view key) {
  if (value == nullptr || !value->is_object()) return wrong(key, value, "an object");
  return &value->get_object();
}

Result<const bj::array*> array_at(const bj::value* value, std::string_view key) {
  if (value == nullptr || !value->is_array()) return wrong(key, value, "an array");
  return &value->get_array();
}

Status expect_string(const bj::value* value, std::string_view key, std::string_view expected) {
  if (value != nullptr && value->is_string() && view(value->get_string()) == expected) return {};
  return wrong(key, value, format('"', expected, '"'));
}

Status expect_false(const bj::value* value, std::string_view key) {
  if (value != nullptr && value->is_bool() && !value->get_bool()) return {};
  return wrong(key, value, "false");
}

// For features that change ids when they are on.
Status expect_off(const bj::object& object, std::string_view parent, std::string_view name) {
  const bj::value* value = object.if_contains(name);
  if (value == nullptr || value->is_null()) return {};
  if (value->is_bool() && !value->get_bool()) return {};
  if (value->is_string() && value->get_string().empty()) return {};
  if (value->is_number() && value->to_number<double>() == 0) return {};
  return wrong(format(parent, name), value, "it to be off (null, false, \"\", 0 or absent)");
}

Status check_normalizer(const bj::value* value) {
  if (value == nullptr || value->is_null()) return {};
  ASSIGN_OR_RETURN(const bj::object* normalizer, object_at(value, "normalizer"));
  RETURN_IF_ERROR(expect_string(normalizer->if_contains("type"), "normalizer.type", "Sequence"));
  const bj::value* steps = normalizer->if_contains("normalizers");
  if (steps == nullptr || !steps->is_array() || !steps->get_array().empty()) {
    return wrong("normalizer.normalizers", steps, "an empty array: text is not normalised");
  }
  return {};
}

Status check_split(const bj::object& split, const std::string& key, std::string_view pattern) {
  RETURN_IF_ERROR(expect_string(split.if_contains("type"), key + ".type", "Split"));
  RETURN_IF_ERROR(expect_string(split.if_contains("behavior"), key + ".behavior", "Isolated"));
  RETURN_IF_ERROR(expect_false(split.if_contains("invert"), key + ".invert"));
  ASSIGN_OR_RETURN(const bj::object* object,
                   object_at(split.if_contains("pattern"), key + ".pattern"));
  const bj::value* regex = object->if_contains("Regex");
  if (regex == nullptr || !regex->is_string()) {
    return wrong(key + ".pattern.Regex", regex, "a string");
  }
  // CR and LF may be in the pattern themselves or as escapes; both mean the same.
  std::string found;
  for (char c : view(regex->get_string())) {
    if (c == '\r') {
      found += "\\r";
    } else if (c == '\n') {
      found += "\\n";
    } else {
      found += c;
    }
  }
  if (found != pattern)
    return wrong(key + ".pattern.Regex", regex, format("the pattern ", pattern));
  return {};
}

Status check_pre_tokenizer(const bj::value* value) {
  ASSIGN_OR_RETURN(const bj::object* sequence, object_at(value, "pre_tokenizer"));
  RETURN_IF_ERROR(expect_string(sequence->if_contains("type"), "pre_tokenizer.type", "Sequence"));
  const std::string list_key = "pre_tokenizer.pretokenizers";
  const bj::value* list_value = sequence->if_contains("pretokenizers");
  ASSIGN_OR_RETURN(const bj::array* list, array_at(list_value, list_key));
  constexpr size_t kNumSplits = std::size(kSplitPatterns);
  if (list->size() != kNumSplits + 1) {
    return wrong(list_key, list_value, "three Split and one ByteLevel");
  }
  for (size_t i = 0; i <= kNumSplits; ++i) {
    const std::string key = format(list_key, '[', i, ']');
    ASSIGN_OR_RETURN(const bj::object* step, object_at(&(*list)[i], key));
    if (i < kNumSplits) {
      RETURN_IF_ERROR(check_split(*step, key, kSplitPatterns[i]));
      continue;
    }
    RETURN_IF_ERROR(expect_string(step->if_contains("type"), key + ".type", "ByteLevel"));
    RETURN_IF_ERROR(expect_false(step->if_contains("add_prefix_space"), key + ".add_prefix_space"));
    RETURN_IF_ERROR(expect_false(step->if_contains("use_regex"), key + ".use_regex"));
  }
  return {};
}

// A ByteLevel post-processor only moves offsets; any other kind would add tokens.
Status check_post_processor(const bj::value* value) {
  if (value == nullptr || value->is_null()) return {};
  ASSIGN_OR_RETURN(const bj::object* processor, object_at(value, "post_processor"));
  return expect_string(processor->if_contains("type"), "post_processor.type", "ByteLevel");
}

Status check_pipeline(const bj::object& root, const bj::object& model) {
  RETURN_IF_ERROR(expect_off(root, "", "truncation"));
  RETURN_IF_ERROR(expect_off(root, "", "padding"));
  RETURN_IF_ERROR(check_normalizer(root.if_contains("normalizer")));
  RETURN_IF_ERROR(check_pre_tokenizer(root.if_contains("pre_tokenizer")));
  RETURN_IF_ERROR(check_post_processor(root.if_contains("post_processor")));
  ASSIGN_OR_RETURN(const bj::object* decoder, object_at(root.if_contains("decoder"), "decoder"));
  RETURN_IF_ERROR(expect_string(decoder->if_contains("type"), "decoder.type", "ByteLevel"));
  // An unknown-token setting has no effect, since every byte must have a token.
  for (std::string_view name :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}) {
    RETURN_IF_ERROR(expect_off(model, "model.", name));
  }
  return {};
}

// The bytes that a spelling in the byte-level alphabet stands for.
std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  static constexpr auto kByteOf = [] {
    std::array<int16_t, 256 + 68> table{};
    table.fill(-1);
    for (int b = 0; b < 256; ++b) table[byte_level_character(static_cast<unsigned char>(b))] = b;
    return table;
  }();
  std::string bytes;
  while (!spelling.empty()) {
    const CodePoint c = front_code_point(spelling);
    if (c.value >= kByteOf.size() || kByteOf[c.value] < 0) return std::nullopt;
    bytes += char(kByteOf[c.value]);
    spelling.remove_prefix(c.size);
  }
  return bytes;
}

// Spelling to id. Loading does half a million look-ups, which are cache misses: an open-addressing
// table takes half the time of std::unordered_map. Spellings view into the parsed JSON.
class Vocabulary {
 public:
  explicit Vocabulary(size_t size) : slots_(std::bit_ceil(size * 2 + 1)) {}

  void insert(std::string_view spelling, int32_t id) { slots_[slot(spelling)] = {spelling, id}; }

  std::optional<int32_t> find(std::string_view spelling) const {
    const Slot& found = slots_[slot(spelling)];
    return found.id < 0 ? std::nullopt : std::optional(found.id);
  }

 private:
  struct Slot {
    std::string_view spelling;
    int32_t id = -1;
  };

  // Where this spelling is, or the free slot where it belongs.
  size_t slot(std::string_view spelling) const {
    size_t at = std::hash<std::string_view>{}(spelling) & (slots_.size() - 1);
    while (slots_[at].id >= 0 && slots_[at].spelling != spelling) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  std::vector<Slot> slots_;
};

class Reader {
 public:
  Result<TokenizerJson> read(const bj::object& root) {
    const bj::value* model_value = root.if_contains("model");
    ASSIGN_OR_RETURN(const bj::object* model, object_at(model_value, "model"));
    RETURN_IF_ERROR(expect_string(model->if_contains("type"), "model.type", "BPE"));
    RETURN_IF_ERROR(check_pipeline(root, *model));
    ASSIGN_OR_RETURN(const bj::object* vocab,
                     object_at(model->if_contains("vocab"), "model.vocab"));
    const bj::value* added_value = root.if_contains("added_tokens");
    ASSIGN_OR_RETURN(const bj::array* added, array_at(added_value, "added_tokens"));
    ASSIGN_OR_RETURN(const bj::array* merges,
                     array_at(model->if_contains("merges"), "model.merges"));
    // Ids have no gaps, so none can be as large as the number of entries.
    id_limit_ = int64_t(vocab->size() + added->size());
    if (id_limit_ > kMostTokens) return wrong_count("tokens", id_limit_);
    if (merges->size() > size_t(kMostTokens)) return wrong_count("merges", merges->size());
    RETURN_IF_ERROR(read_vocab(*vocab));
    RETURN_IF_ERROR(read_added(*added));
    RETURN_IF_ERROR(check_ids());
    RETURN_IF_ERROR(find_bytes());
    RETURN_IF_ERROR(read_merges(*merges));
    return std::move(out_);
  }

 private:
  static constexpr int64_t kMostTokens = int64_t{1} << 24;

  static Error wrong_count(std::string_view what, int64_t count) {
    return Error{Code::kCorrupt,
                 format("found ", count, ' ', what, ", expected at most ", kMostTokens)};
  }

  Result<int32_t> read_id(const bj::value* value, const std::string& key) const {
    if (value == nullptr || !value->is_int64() || value->get_int64() < 0 ||
        value->get_int64() >= id_limit_) {
      return wrong(key, value,
                   format("an id below ", id_limit_, ", the number of tokens in the file"));
    }
    return int32_t(value->get_int64());
  }

  Status read_vocab(const bj::object& vocab) {
    out_.tokens.resize(id_limit_);
    in_use_.resize(id_limit_);
    is_added_.resize(id_limit_);
    vocabulary_ = Vocabulary(vocab.size());
    for (const auto& [json_key, value] : vocab) {
      const std::string_view spelling(json_key.data(), json_key.size());
      if (spelling.empty()) return wrong("model.vocab[\"\"]", &value, "no empty token");
      if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= id_limit_) {
        RETURN_IF_ERROR(read_id(&value, format("model.vocab[\"", spelling, "\"]")));
      }
      const auto id = int32_t(value.get_int64());
      if (in_use_[id]) {
        return wrong(format("model.vocab[\"", spelling, "\"]"), &value,
                     "an id that no other token has");
      }
      in_use_[id] = true;
      vocabulary_.insert(spelling, id);
      // Spelled outside the alphabet it cannot come from text, but it still has to decode.
      out_.tokens[id] = bytes_of_spelling(spelling).value_or(std::string(spelling));
    }
    return {};
  }

  Status read_added(const bj::array& added) {
    std::unordered_set<std::string_view> literals;
    for (size_t i = 0; i < added.size(); ++i) {
      const std::string key = format("added_tokens[", i, ']');
      ASSIGN_OR_RETURN(const bj::object* object, object_at(&added[i], key));
      for (std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
        RETURN_IF_ERROR(expect_off(*object, key + '.', flag));
      }
      const bj::value* id_value = object->if_contains("id");
      ASSIGN_OR_RETURN(const int32_t id, read_id(id_value, key + ".id"));
      const bj::value* content = object->if_contains("content");
      if (content == nullptr || !content->is_string() || content->get_string().empty()) {
        return wrong(key + ".content", content, "a string that is not empty");
      }
      const std::string_view literal = view(content->get_string());
      if (!literals.insert(literal).second) {
        return wrong(key + ".content", content, "text that no other added token has");
      }
      if (is_added_[id]) return wrong(key + ".id", id_value, "an id that no other token has");
      RETURN_IF_ERROR(check_against_vocab(key, id, literal));
      bool special = false, normalized = false;
      RETURN_IF_ERROR(read_flag(*object, key, "special", special));
      RETURN_IF_ERROR(read_flag(*object, key, "normalized", normalized));
      in_use_[id] = true;
      is_added_[id] = true;
      out_.tokens[id] = literal;
      out_.added.push_back({id, std::string(literal), special, normalized});
    }
    return {};
  }

  static Status read_flag(const bj::object& object, const std::string& key, std::string_view name,
                          bool& flag) {
    const bj::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_bool()) {
      return wrong(format(key, '.', name), value, "true or false");
    }
    flag = value->get_bool();
    return {};
  }

  // An added token may also stand in the vocabulary, but then it must be the same token: same
  // id, and if its spelling is byte-level, for the same bytes. Otherwise ordinary text could
  // become the id of an added token.
  Status check_against_vocab(const std::string& key, int32_t id, std::string_view literal) const {
    const std::optional<int32_t> in_vocabulary = vocabulary_.find(literal);
    if (!in_vocabulary) {
      if (!in_use_[id]) return {};
      return Error{Code::kCorrupt, format(key, ": found id ", id, " for \"", literal,
                                          "\", expected an id that no token of model.vocab has")};
    }
    if (*in_vocabulary != id) {
      return Error{Code::kCorrupt, format(key, ".id: found ", id, ", expected ", *in_vocabulary,
                                          ", the id of \"", literal, "\" in model.vocab")};
    }
    if (bytes_of_spelling(literal).value_or(std::string(literal)) != literal) {
      return Error{Code::kCorrupt,
                   format(key, ".content: found \"", literal,
                          "\", which spells other bytes in model.vocab, expected it to be "
                          "either ASCII or outside the byte-level alphabet")};
    }
    return {};
  }

  Status check_ids() {
    // Added tokens that repeat vocabulary tokens leave unused room at the end.
    size_t count = in_use_.size();
    while (count > 0 && !in_use_[count - 1]) --count;
    for (size_t id = 0; id < count; ++id) {
      if (in_use_[id]) continue;
      return Error{Code::kCorrupt, format("model.vocab and added_tokens: found no token for id ",
                                          id, ", expected one for every id up to ", count - 1)};
    }
    out_.tokens.resize(count);
    return {};
  }

  Status find_bytes() {
    for (int b = 0; b < 256; ++b) {
      std::string spelling;
      append_utf8(byte_level_character(static_cast<unsigned char>(b)), spelling);
      const std::optional<int32_t> id = vocabulary_.find(spelling);
      if (!id || is_added_[*id]) {
        return Error{Code::kCorrupt,
                     format("model.vocab: found ", id ? "an added" : "no", " token for byte ", b,
                            ", expected \"", spelling, "\" as an ordinary token")};
      }
      out_.byte_ids[b] = *id;
    }
    return {};
  }

  Status read_merges(const bj::array& merges) {
    out_.merges.reserve(merges.size());
    std::string result;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      std::string_view left, right;
      if (!read_pair(merges[rank], left, right)) {
        return wrong(format("model.merges[", rank, ']'), &merges[rank],
                     "two tokens, as \"a b\" or [\"a\", \"b\"]");
      }
      result.assign(left).append(right);
      Merge merge{};
      for (const auto& [part, id] : {std::pair{left, &merge.left},
                                     {right, &merge.right},
                                     {std::string_view(result), &merge.result}}) {
        const std::optional<int32_t> found = vocabulary_.find(part);
        if (!found) {
          return Error{Code::kCorrupt, format("model.merges[", rank, "]: found \"", part,
                                              "\", expected a token of model.vocab")};
        }
        *id = *found;
      }
      // Where added tokens are recognised, their text never reaches the merges; where they are
      // not, it must not become one. Nothing is lost by leaving such a merge out.
      if (!is_added_[merge.result]) out_.merges.push_back(merge);
    }
    return {};
  }

  static bool read_pair(const bj::value& value, std::string_view& left, std::string_view& right) {
    if (value.is_array()) {
      const bj::array& pair = value.get_array();
      if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) return false;
      left = view(pair[0].get_string());
      right = view(pair[1].get_string());
    } else if (value.is_string()) {
      const std::string_view line = view(value.get_string());
      const size_t space = line.find(' ');
      if (space == line.npos || line.find(' ', space + 1) != line.npos) return false;
      left = line.substr(0, space);
      right = line.substr(space + 1);
    }
    return !left.empty() && !right.empty();
  }

  TokenizerJson out_;
  Vocabulary vocabulary_{0};
  std::vector<bool> in_use_, is_added_;  // by id
  int64_t id_limit_ = 0;
};

}  // namespace

Result<TokenizerJson> read_tokenizer_json(std::string_view json) {
  bj::monotonic_resource memory;
  ASSIGN_OR_RETURN(const bj::value root_value, parse_json_file(json, kLimits, &memory));
  ASSIGN_OR_RETURN(const bj::object* root, object_at(&root_value, "the text"));
  return Reader().read(*root);
}

}  // namespace millrace
