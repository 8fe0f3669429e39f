#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace millrace {
namespace {

constexpr uint32_t kNoMerge = 0xffffffff;
constexpr uint32_t kNone = 0xffffffff;  // no neighbour

// Up to this many bytes a scan for the lowest rank beats the heap.
constexpr size_t kShortPiece = 32;

uint64_t hash_pair(int32_t left, int32_t right) {
  return (uint64_t(uint32_t(left)) << 32 | uint32_t(right)) * 0x9e3779b97f4a7c15u;
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges)
    : byte_ids_(byte_ids) {
  MR_CHECK_OP(merges.size(), <, kNoMerge);
  const int bits = std::bit_width(merges.size() * 2 + 1);
  shift_ = 64 - bits;
  table_.resize(size_t{1} << bits);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    size_t slot = hash_pair(m.left, m.right) >> shift_;
    while (table_[slot].left >= 0 &&
           (table_[slot].left != m.left || table_[slot].right != m.right)) {
      slot = (slot + 1) & (table_.size() - 1);
    }
    table_[slot] = {m.left, m.right, uint32_t(rank), m.result};
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
  return entry != nullptr ? entry->rank : kNoMerge;
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, scratch, ids);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kShortPiece> id;
  std::array<uint32_t, kShortPiece> rank;  // of the merge of id[i] and id[i + 1]
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) id[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) rank[i] = rank_of(id[i], id[i + 1]);
  while (count > 1) {
    const size_t at = std::min_element(rank.begin(), rank.begin() + count - 1) - rank.begin();
    if (rank[at] == kNoMerge) break;
    id[at] = find(id[at], id[at + 1])->result;
    std::copy(id.begin() + at + 2, id.begin() + count, id.begin() + at + 1);
    std::copy(rank.begin() + at + 1, rank.begin() + count - 1, rank.begin() + at);
    --count;
    if (at > 0) rank[at - 1] = rank_of(id[at - 1], id[at]);
    if (at + 1 < count) rank[at] = rank_of(id[at], id[at + 1]);
  }
  ids.insert(ids.end(), id.begin(), id.begin() + count);
}

// A list of tokens and a heap of candidates (rank, position), so n bytes take O(n log n). A
// candidate is stale when its node no longer has that rank.
void Bpe::encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  MR_CHECK_OP(piece.size(), <, kNone);
  const auto size = uint32_t(piece.size());
  std::vector<Scratch::Node>& nodes = scratch.nodes;
  std::vector<uint64_t>& heap = scratch.heap;
  nodes.resize(size);
  heap.clear();
  const auto candidate = [](uint32_t rank, uint32_t at) { return uint64_t(rank) << 32 | at; };
  for (uint32_t i = 0; i < size; ++i) {
    nodes[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], kNoMerge, i - 1, i + 1};
  }
  nodes[size - 1].next = kNone;  // nodes[0].previous is kNone: 0 - 1
  for (uint32_t i = 0; i + 1 < size; ++i) {
    nodes[i].rank = rank_of(nodes[i].id, nodes[i + 1].id);
    if (nodes[i].rank != kNoMerge) heap.push_back(candidate(nodes[i].rank, i));
  }
  std::ranges::make_heap(heap, std::greater{});

  const auto update = [&](uint32_t at) {
    const uint32_t next = nodes[at].next;
    const uint32_t rank = next == kNone ? kNoMerge : rank_of(nodes[at].id, nodes[next].id);
    nodes[at].rank = rank;
    if (rank == kNoMerge) return;
    heap.push_back(candidate(rank, at));
    std::ranges::push_heap(heap, std::greater{});
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater{});
    const auto rank = uint32_t(heap.back() >> 32);
    const auto at = uint32_t(heap.back());
    heap.pop_back();
    if (nodes[at].rank != rank) continue;
    const uint32_t gone = nodes[at].next;
    nodes[at].id = find(nodes[at].id, nodes[gone].id)->result;
    nodes[at].next = nodes[gone].next;
    nodes[gone].rank = kNoMerge;
    if (nodes[at].next != kNone) nodes[nodes[at].next].previous = at;
    update(at);
    if (nodes[at].previous != kNone) update(nodes[at].previous);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) ids.push_back(nodes[i].id);
}

}  // namespace millrace
