#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace millrace {
namespace {

constexpr uint32_t kNone = 0xffffffff;  // no rank, no position, end of a list

// Up to this many bytes a scan for the lowest rank beats the lists.
constexpr size_t kShortPiece = 32;

// Every byte can be a candidate three times, and candidates are numbered in 32 bits.
constexpr size_t kMaxPiece = size_t{1} << 30;

constexpr size_t kMaxCachedBytes = 15;
constexpr int kCacheBits = 14;

constexpr uint64_t kHashFactor = 0x9e3779b97f4a7c15u;

uint64_t hash_pair(int32_t left, int32_t right) {
  return (uint64_t(uint32_t(left)) << 32 | uint32_t(right)) * kHashFactor;
}

std::array<uint64_t, 2> cache_key(std::string_view piece) {
  std::array<char, 16> bytes{};
  std::memcpy(bytes.data(), piece.data(), piece.size());
  bytes[15] = char(piece.size());
  return std::bit_cast<std::array<uint64_t, 2>>(bytes);
}

size_t cache_slot(const std::array<uint64_t, 2>& key) {
  const uint64_t mixed = (key[0] * kHashFactor ^ key[1]) * kHashFactor;
  return mixed >> (64 - kCacheBits);
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges)
    : byte_ids_(byte_ids) {
  MR_CHECK_OP(merges.size(), <, kNone);
  const int bits = std::bit_width(merges.size() * 2 + 1);
  shift_ = 64 - bits;
  table_.resize(size_t{1} << bits);
  results_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    size_t slot = hash_pair(m.left, m.right) >> shift_;
    while (table_[slot].left >= 0 &&
           (table_[slot].left != m.left || table_[slot].right != m.right)) {
      slot = (slot + 1) & (table_.size() - 1);
    }
    table_[slot] = {m.left, m.right, uint32_t(rank), m.result};
    results_.push_back(m.result);
  }
}

const Bpe::Entry* Bpe::find(int32_t left, int32_t right) const {
  for (size_t slot = hash_pair(left, right) >> shift_;; slot = (slot + 1) & (table_.size() - 1)) {
    const Entry& entry = table_[slot];
    if (entry.left == left && entry.right == right) return &entry;
    if (entry.left < 0) return nullptr;
  }
}

uint32_t Bpe::rank_of(int32_t left, int32_t right) const {
  const Entry* entry = find(left, right);
  return entry != nullptr ? entry->rank : kNone;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() > kShortPiece) return encode_long(piece, scratch, ids);
  if (piece.size() > kMaxCachedBytes) return encode_short(piece, ids);
  if (scratch.owner != table_.data()) {
    scratch = {};
    scratch.owner = table_.data();
    scratch.cache.resize(size_t{1} << kCacheBits);
  }
  const std::array<uint64_t, 2> key = cache_key(piece);
  Scratch::CacheEntry& entry = scratch.cache[cache_slot(key)];
  if (entry.key[0] == key[0] && entry.key[1] == key[1]) {
    for (int32_t id : entry.ids) {
      if (id < 0) break;
      ids.push_back(id);
    }
    return;
  }
  const size_t before = ids.size();
  encode_short(piece, ids);
  if (ids.size() - before > entry.ids.size()) return;
  entry.key = key;
  entry.ids.fill(-1);
  std::copy(ids.begin() + before, ids.end(), entry.ids.begin());
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> id;
  std::array<uint32_t, kShortPiece> rank;  // of the merge of id[i] and id[i + 1]
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) id[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) rank[i] = rank_of(id[i], id[i + 1]);
  while (count > 1) {
    const size_t at = std::min_element(rank.begin(), rank.begin() + count - 1) - rank.begin();
    if (rank[at] == kNone) break;
    id[at] = results_[rank[at]];
    std::copy(id.begin() + at + 2, id.begin() + count, id.begin() + at + 1);
    std::copy(rank.begin() + at + 1, rank.begin() + count - 1, rank.begin() + at);
    --count;
    if (at > 0) rank[at - 1] = rank_of(id[at - 1], id[at]);
    if (at + 1 < count) rank[at] = rank_of(id[at], id[at + 1]);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + count);
}

// Keeps the positions of all pairs in one list per rank and merges rank by rank, each list from
// left to right: linear in the bytes, apart from the heap of open ranks.
void Bpe::encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  MR_CHECK_OP(piece.size(), <, kMaxPiece);
  const auto size = uint32_t(piece.size());
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  nodes.resize(size);
  for (uint32_t i = 0; i < size; ++i) {
    nodes[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], kNone, i - 1, i + 1};
  }
  nodes[size - 1].next = kNone;  // nodes[0].previous is kNone: 0 - 1
  scratch.candidates.clear();
  scratch.lists.resize(results_.size(), kNone);
  for (uint32_t i = 0; i < size; ++i) add_candidate(i, scratch);
  while (!scratch.open_ranks.empty()) {
    std::ranges::pop_heap(scratch.open_ranks, std::greater{});
    const uint32_t rank = scratch.open_ranks.back();
    scratch.open_ranks.pop_back();
    merge_rank(rank, scratch);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) ids.push_back(nodes[i].id);
}

// Looks up the pair that starts at `position` and enters it in the list of its rank. What was
// entered for an earlier pair of this position is stale from now on.
void Bpe::add_candidate(uint32_t position, Scratch& scratch) const {
  Scratch::Node& node = scratch.nodes[position];
  node.rank = node.next == kNone ? kNone : rank_of(node.id, scratch.nodes[node.next].id);
  if (node.rank == kNone) return;
  uint32_t& list = scratch.lists[node.rank];
  if (list == kNone) {
    scratch.open_ranks.push_back(node.rank);
    std::ranges::push_heap(scratch.open_ranks, std::greater{});
  }
  scratch.candidates.push_back({position, list});
  list = uint32_t(scratch.candidates.size() - 1);
}

void Bpe::merge_rank(uint32_t rank, Scratch& scratch) const {
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  std::vector<uint32_t>& positions = scratch.positions;
  positions.clear();
  for (uint32_t c = scratch.lists[rank]; c != kNone; c = scratch.candidates[c].next) {
    positions.push_back(scratch.candidates[c].position);
  }
  scratch.lists[rank] = kNone;
  // Entered by one lower rank they are in order already, newest first.
  std::ranges::reverse(positions);
  if (!std::ranges::is_sorted(positions)) std::ranges::sort(positions);
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint32_t at = positions[i];
    if (nodes[at].rank != rank) continue;
    const uint32_t gone = nodes[at].next;
    nodes[at].id = results_[rank];
    nodes[at].next = nodes[gone].next;
    nodes[gone].rank = kNone;
    if (nodes[at].next != kNone) nodes[nodes[at].next].previous = at;
    add_candidate(at, scratch);
    if (nodes[at].previous != kNone) add_candidate(nodes[at].previous, scratch);
    // No trained vocabulary builds on a token before it is made, but if one does, the lower rank
    // comes first and the rest of this list waits.
    if (!scratch.open_ranks.empty() && scratch.open_ranks.front() <= rank) {
      for (size_t rest = i + 1; rest < positions.size(); ++rest) {
        if (nodes[positions[rest]].rank == rank) add_candidate(positions[rest], scratch);
      }
      return;
    }
  }
}

}  // namespace millrace
