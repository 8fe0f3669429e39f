#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace millrace {

// One learned merge: the pair (left, right) becomes `result`.
struct Merge {
  int32_t left, right, result;
};

// Byte-pair encoding: starts from one token per byte and merges the adjacent pair of lowest rank,
// the leftmost on ties, until no pair has a merge.
//
// Threading: const after construction; each thread brings its own Scratch.
class Bpe {
 public:
  struct Scratch {
    struct Node {
      int32_t id;
      uint32_t rank;  // of the merge with the next node
      uint32_t previous, next;
    };
    std::vector<Node> nodes;
    std::vector<uint64_t> heap;
  };

  // `merges` in order of rank; of two merges of one pair the later counts, as in a map filled
  // in order.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Appends the ids of `piece`. Requires: piece.size() < 2^32 - 1.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Entry {  // of an open-addressing table, half full at most
    int32_t left = -1, right = -1;
    uint32_t rank = 0;
    int32_t result = -1;
  };

  const Entry* find(int32_t left, int32_t right) const;
  uint32_t rank_of(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;
  int shift_ = 0;
};

}  // namespace millrace
