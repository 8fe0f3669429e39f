#include "tokenizer/tokenizer.h"

#include <array>

#include "base/check.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/splitter.h"
#include "tokenizer/tokenizer_json.h"

namespace millrace {

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json) {
  ASSIGN_OR_RETURN(TokenizerJson file, read_tokenizer_json(tokenizer_json));
  std::vector<Token> tokens;
  tokens.reserve(file.tokens.size());
  for (std::string& bytes : file.tokens) tokens.push_back({std::move(bytes)});
  std::vector<AddedTokenFinder::Token> first, second;
  for (AddedToken& t : file.added) {
    tokens[t.id].added = true;
    tokens[t.id].special = t.special;
    (t.normalized ? second : first).push_back({std::move(t.literal), t.id});
  }
  return Tokenizer(std::move(tokens), AddedTokenFinder(std::move(first)),
                   AddedTokenFinder(std::move(second)), Bpe(file.byte_ids, file.merges));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens mode) const {
  Scratch scratch;
  std::vector<int32_t> ids;
  encode(text, mode, scratch, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, SpecialTokens mode, Scratch& scratch,
                       std::vector<int32_t>& ids) const {
  const Range whole{0, text.size()};
  const size_t num_trusted = mode == SpecialTokens::kRecognise ? 1 : 0;
  encode(text, std::span(&whole, num_trusted), scratch, ids);
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSegment> segments) const {
  std::string text;
  std::vector<Range> trusted;
  for (const TextSegment& segment : segments) {
    if (segment.trusted) {
      if (trusted.empty() || trusted.back().end != text.size()) {
        trusted.push_back({text.size(), text.size()});
      }
      trusted.back().end += segment.text.size();
    }
    text += segment.text;
  }
  Scratch scratch;
  std::vector<int32_t> ids;
  encode(text, trusted, scratch, ids);
  return ids;
}

void Tokenizer::find_added(std::string_view text, Range range, size_t pass,
                           std::vector<AddedTokenFinder::Match>& matches) const {
  if (pass == std::size(finders_)) return;
  const std::string_view visible = text.substr(0, range.end);
  while (const auto match = finders_[pass].find(visible, range.begin)) {
    find_added(text, {range.begin, match->begin}, pass + 1, matches);
    matches.push_back(*match);
    range.begin = match->end;
  }
  find_added(text, range, pass + 1, matches);
}

void Tokenizer::encode(std::string_view text, std::span<const Range> trusted, Scratch& scratch,
                       std::vector<int32_t>& ids) const {
  constexpr size_t kUsualBytesPerToken = 3;
  if (ids.empty()) ids.reserve(text.size() / kUsualBytesPerToken + 1);
  std::vector<AddedTokenFinder::Match> matches;
  for (const Range& range : trusted) find_added(text, range, 0, matches);
  const auto encode_plain = [&](std::string_view plain) {
    Splitter splitter(plain);
    std::array<size_t, Bpe::kMostPieces> sizes;
    while (!plain.empty()) {
      size_t num_pieces = 0, num_bytes = 0;
      for (; num_pieces < sizes.size() && num_bytes < plain.size(); ++num_pieces) {
        sizes[num_pieces] = splitter.next().size();
        num_bytes += sizes[num_pieces];
      }
      bpe_.encode(plain, std::span(sizes).first(num_pieces), scratch, ids);
      plain.remove_prefix(num_bytes);
    }
  };
  size_t begin = 0;
  for (const AddedTokenFinder::Match& match : matches) {
    encode_plain(text.substr(begin, match.begin - begin));
    ids.push_back(match.id);
    begin = match.end;
  }
  encode_plain(text.substr(begin));
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  Detokenizer detokenizer(*this);
  std::string text;
  for (int32_t id : ids) detokenizer.push(id, text);
  detokenizer.finish(text);
  return text;
}

const Tokenizer::Token& Tokenizer::token(int32_t id) const {
  MR_CHECK_OP(id, >=, 0);
  MR_CHECK_OP(id, <, vocab_size());
  return tokens_[id];
}

std::optional<int32_t> Tokenizer::token_id(std::string_view literal) const {
  const auto id = finders_[0].id_of(literal);
  return id ? id : finders_[1].id_of(literal);
}

}  // namespace millrace
