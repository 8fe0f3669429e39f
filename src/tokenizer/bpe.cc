#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "base/check.h"

namespace millrace {
namespace {

// Up to this many bytes a scan for the lowest rank beats a heap. A rank and a position in a short
// piece share 32 bits.
constexpr int kPositionBits = 6;
constexpr size_t kShortPiece = size_t{1} << kPositionBits;

constexpr int64_t kMostIds = int64_t{1} << 24;
constexpr size_t kFirstCache = size_t{1} << 10, kLastCache = size_t{1} << 16;

// A long piece is merged in windows. The tokens in the last bytes of a window are left to the next
// one, because what follows can change them.
constexpr size_t kWindow = 4096;
constexpr size_t kMargin = 512;

int table_bits(size_t entries) { return std::bit_width(entries * 2 + 1); }

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges)
    : byte_ids_(byte_ids) {
  MR_CHECK_OP(int64_t(merges.size()), <, kMostIds);
  fill_merges(merges);
  fill_words(merges);
}

void Bpe::fill_merges(std::span<const Merge> merges) {
  int32_t last_id = *std::ranges::max_element(byte_ids_);
  for (const Merge& m : merges) last_id = std::max({last_id, m.left, m.right, m.result});
  MR_CHECK_OP(last_id, <, kMostIds);

  const int bits = table_bits(merges.size());
  merges_shift_ = 64 - bits;
  merges_.resize(size_t{1} << bits);
  sizes_.resize(size_t(last_id) + 1);
  for (int32_t id : byte_ids_) sizes_[id] = 1;
  std::vector<bool> is_part(sizes_.size());  // of a merge so far
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    size_t slot = pair_slot(m.left, m.right);
    while (merges_[slot].left >= 0 &&
           (merges_[slot].left != m.left || merges_[slot].right != m.right)) {
      slot = (slot + 1) & (merges_.size() - 1);
    }
    merges_[slot] = {m.left, m.right, {uint32_t(rank), m.result}};
    is_part[m.left] = is_part[m.right] = true;
    if (is_part[m.result]) is_ordered_ = false;
    sizes_[m.result] = sizes_[m.left] + sizes_[m.right];
  }
  byte_pairs_.reserve(256 * 256);
  for (int32_t left : byte_ids_) {
    for (int32_t right : byte_ids_) byte_pairs_.push_back(outcome(left, right));
  }
}

// Every token that the merges make of its own bytes is a word. That is tried for each one: nothing
// in the file promises it.
void Bpe::fill_words(std::span<const Merge> merges) {
  std::vector<std::string> bytes(sizes_.size());  // empty if unknown or too many
  for (int b = 0; b < 256; ++b) bytes[byte_ids_[b]] = std::string(1, char(b));
  for (const Merge& m : merges) {
    const std::string &left = bytes[m.left], &right = bytes[m.right];
    if (left.empty() || right.empty() || left.size() + right.size() > Word::kMaxSize) continue;
    bytes[m.result] = left + right;
  }
  const int bits = table_bits(sizes_.size());
  words_shift_ = 64 - bits;
  words_.resize(size_t{1} << bits);
  std::vector<int32_t> ids;
  for (size_t id = 0; id < bytes.size(); ++id) {
    if (bytes[id].empty()) continue;
    ids.clear();
    merge_short(bytes[id], ids);
    if (ids.size() != 1 || ids[0] != int32_t(id)) continue;
    const ShortWord word = short_word(bytes[id], bytes[id].size());
    size_t slot = word_slot(word);
    while (words_[slot].high != 0) slot = (slot + 1) & (words_.size() - 1);
    words_[slot] = {word.low, word.high | uint64_t(id) << 32};
  }
}

Bpe::Outcome Bpe::outcome(int32_t left, int32_t right) const {
  for (size_t slot = pair_slot(left, right);;
       slot = (slot + 1) & (merges_.size() - 1)) {
    const Entry& entry = merges_[slot];
    if (entry.left == left && entry.right == right) return entry.outcome;
    if (entry.left < 0) return {};
  }
}

std::optional<int32_t> Bpe::find_word(const ShortWord& word) const {
  constexpr uint64_t kNotId = 0xff000000ffffffffu;
  for (size_t slot = word_slot(word);; slot = (slot + 1) & (words_.size() - 1)) {
    const Word& entry = words_[slot];
    // The size of a longer piece is no word's.
    if (entry.low == word.low && ((entry.high ^ word.high) & kNotId) == 0) {
      return int32_t(entry.high >> 32 & 0xffffff);
    }
    if (entry.high == 0) return std::nullopt;
  }
}

void Bpe::encode(std::string_view text, std::span<const size_t> sizes, Scratch& scratch,
                 std::vector<int32_t>& ids) const {
  MR_CHECK_OP(sizes.size(), <=, kMostPieces);
  prepare(scratch);
  // The table of words is larger than fast caches, so all places are asked for before one is read.
  std::array<ShortWord, kMostPieces> words;
  std::string_view rest = text;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= ShortWord::kMaxSize) {
      words[i] = short_word(rest, sizes[i]);
      __builtin_prefetch(&words_[word_slot(words[i])]);
    }
    rest.remove_prefix(sizes[i]);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > ShortWord::kMaxSize) {
      encode_long(text.substr(0, sizes[i]), scratch, ids);
    } else if (const std::optional<int32_t> id = find_word(words[i])) {
      ids.push_back(*id);
    } else {
      encode_cached(text.substr(0, sizes[i]), words[i], scratch, ids);
    }
    text.remove_prefix(sizes[i]);
  }
}

void Bpe::prepare(Scratch& scratch) const {
  if (scratch.owner != merges_.data()) {
    scratch = {};
    scratch.owner = merges_.data();
    scratch.cache.resize(kFirstCache);
  }
  if (scratch.num_cached < scratch.cache.size() || scratch.cache.size() == kLastCache) return;
  std::vector<Scratch::CacheEntry> larger(scratch.cache.size() * 4);
  std::swap(scratch.cache, larger);
  scratch.num_cached = 0;
  for (const Scratch::CacheEntry& entry : larger) scratch.place(entry.word) = entry;
}

void Bpe::encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  const bool in_windows = piece.size() > kWindow && is_ordered_;
  if (in_windows && merge_windows(piece, scratch, ids)) return;
  merge(piece, scratch, ids);
}

void Bpe::encode_cached(std::string_view piece, const ShortWord& word, Scratch& scratch,
                        std::vector<int32_t>& ids) const {
  Scratch::CacheEntry& entry = scratch.place(word);
  if (entry.word == word) {
    for (int32_t id : entry.ids) {
      if (id < 0) break;
      ids.push_back(id);
    }
    return;
  }
  const size_t before = ids.size();
  merge_short(piece, ids);
  if (ids.size() - before > entry.ids.size()) return;
  ++scratch.num_cached;
  entry.word = word;
  entry.ids.fill(-1);
  std::copy(ids.begin() + before, ids.end(), entry.ids.begin());
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  piece.size() <= kShortPiece ? merge_short(piece, ids) : merge_long(piece, scratch, ids);
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  constexpr size_t kLanes = 16;
  // By position of a token's first byte. A candidate is the rank of the merge with the next token,
  // then the position, so that the smallest is the one that is due.
  std::array<uint32_t, kShortPiece> candidates;
  std::array<int32_t, kShortPiece> id;
  std::array<uint8_t, kShortPiece> next, previous;
  const auto size = uint32_t(piece.size());
  std::array<int32_t, kShortPiece> results;  // of the candidates
  const auto set_candidate = [&](uint32_t position, Outcome outcome) {
    candidates[position] =
        outcome.rank == kNone ? kNone : outcome.rank << kPositionBits | position;
    results[position] = outcome.result;
  };
  const size_t padded = (size + kLanes - 1) / kLanes * kLanes;
  for (uint32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    id[i] = byte_ids_[byte];
    next[i] = uint8_t(i + 1);
    previous[i] = uint8_t(i - 1);
    if (i + 1 == size) break;
    const auto following = static_cast<unsigned char>(piece[i + 1]);
    set_candidate(i, byte_pairs_[byte * 256 + following]);
  }
  std::fill(candidates.begin() + size - 1, candidates.begin() + padded, kNone);
  for (;;) {
    std::array<uint32_t, kLanes> least;
    std::copy_n(candidates.begin(), kLanes, least.begin());
    for (size_t i = kLanes; i < padded; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        least[lane] = std::min(least[lane], candidates[i + lane]);
      }
    }
    uint32_t best = least[0];
    for (uint32_t lane : least) best = std::min(best, lane);
    if (best == kNone) break;
    const uint32_t at = best % kShortPiece, gone = next[at], after = next[gone];
    id[at] = results[at];
    next[at] = uint8_t(after);
    candidates[gone] = candidates[at] = kNone;
    if (at > 0) __builtin_prefetch(&merges_[pair_slot(id[previous[at]], id[at])]);
    if (after < size) {
      previous[after] = uint8_t(at);
      set_candidate(at, outcome(id[at], id[after]));
    }
    if (at > 0) {
      const uint32_t before = previous[at];
      set_candidate(before, outcome(id[before], id[at]));
    }
  }
  for (uint32_t i = 0; i < size; i = next[i]) ids.push_back(id[i]);
}

// Merges with a heap of candidates. One that is no longer true is recognised by its rank.
void Bpe::merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  MR_CHECK_OP(piece.size(), <, kNone);
  const auto size = uint32_t(piece.size());
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  std::vector<uint64_t>& candidates = scratch.candidates;
  nodes.resize(size);
  candidates.clear();
  for (uint32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    nodes[i] = {byte_ids_[byte], {}, i - 1, i + 1};  // kNone before the first: 0 - 1
    if (i + 1 == size) break;
    nodes[i].outcome = byte_pairs_[byte * 256 + static_cast<unsigned char>(piece[i + 1])];
    const uint32_t rank = nodes[i].outcome.rank;
    if (rank != kNone) candidates.push_back(uint64_t(rank) << 32 | i);
  }
  nodes[size - 1].next = kNone;
  std::ranges::make_heap(candidates, std::greater{});
  while (!candidates.empty()) {
    std::ranges::pop_heap(candidates, std::greater{});
    const auto rank = uint32_t(candidates.back() >> 32), at = uint32_t(candidates.back());
    candidates.pop_back();
    if (nodes[at].outcome.rank != rank) continue;
    const uint32_t gone = nodes[at].next;
    nodes[at].id = nodes[at].outcome.result;
    nodes[at].next = nodes[gone].next;
    nodes[gone].outcome = {};
    if (nodes[at].next != kNone) nodes[nodes[at].next].previous = at;
    add_candidate(at, scratch);
    if (nodes[at].previous != kNone) add_candidate(nodes[at].previous, scratch);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) ids.push_back(nodes[i].id);
}

// Looks up the pair that starts at `position`.
void Bpe::add_candidate(uint32_t position, Scratch& scratch) const {
  Scratch::Node& node = scratch.nodes[position];
  node.outcome = {};
  if (node.next != kNone) node.outcome = outcome(node.id, scratch.nodes[node.next].id);
  if (node.outcome.rank == kNone) return;
  scratch.candidates.push_back(uint64_t(node.outcome.rank) << 32 | position);
  std::ranges::push_heap(scratch.candidates, std::greater{});
}

// With ordered merges, rank after rank is done from left to right, and two facts follow. A place
// that no merge has crossed in the end has parted its two sides all the time: the ids of the piece
// are those of the left side and then those of the right side. And whether a merge crosses a place
// depends only on the token before it and the token after it that the two sides end up with. So it
// is enough that at every cut these two tokens, merged together, stay apart.
//
// Appends nothing and returns false if they do not.
bool Bpe::merge_windows(std::string_view piece, Scratch& scratch,
                        std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  for (size_t begin = 0;;) {
    const size_t end = std::min(begin + kWindow, piece.size());
    const size_t first = ids.size();
    merge(piece.substr(begin, end - begin), scratch, ids);
    if (first > before && !stay_apart(piece, begin, ids[first - 1], ids[first], scratch)) {
      ids.resize(before);
      return false;
    }
    if (end == piece.size()) return true;
    size_t kept = end;
    while (kept > end - kMargin && ids.size() > first + 1) {
      kept -= sizes_[ids.back()];
      ids.pop_back();
    }
    begin = kept;
  }
}

bool Bpe::stay_apart(std::string_view piece, size_t cut, int32_t left, int32_t right,
                     Scratch& scratch) const {
  std::vector<int32_t> ids;
  merge(piece.substr(cut - sizes_[left], sizes_[left] + sizes_[right]), scratch, ids);
  return ids.size() == 2 && ids[0] == left && ids[1] == right;
}

}  // namespace millrace
