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
  // Buffers and a cache of short pieces. Results do not depend on what is in it. It serves one
  // Bpe; given to another it starts afresh.
  class Scratch {
    friend class Bpe;
    struct CacheEntry {  // all zero when empty
      static constexpr size_t kMaxIds = 4;
      std::array<uint64_t, 2> key{};       // up to 15 bytes and their number
      std::array<int32_t, kMaxIds> ids{};  // ended by -1 if fewer
    };
    struct Node {  // of a list of tokens; its index is the position of its first byte
      int32_t id;
      uint32_t rank;  // of the merge with the next node
      uint32_t previous, next;
    };
    struct Candidate {  // of a list of positions that had a pair of some rank
      uint32_t position, next;
    };
    const void* owner = nullptr;
    std::vector<CacheEntry> cache;
    std::vector<Node> nodes;
    std::vector<Candidate> candidates;
    std::vector<uint32_t> lists;       // by rank: the newest candidate; all empty between calls
    std::vector<uint32_t> open_ranks;  // heap of the ranks whose list is not empty
    std::vector<uint32_t> positions;   // of the rank that is being merged
  };

  // `merges` in order of rank; of two merges of one pair the later counts, as in a map filled
  // in order.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Appends the ids of `piece`. Requires: 0 < piece.size() < 2^30.
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
  void add_candidate(uint32_t position, Scratch& scratch) const;
  void merge_rank(uint32_t rank, Scratch& scratch) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;
  std::vector<int32_t> results_;  // by rank
  int shift_ = 0;
};

}  // namespace millrace
