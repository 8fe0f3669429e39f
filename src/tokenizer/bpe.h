#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/short_word.h"

namespace millrace {

// One learned merge: the pair (left, right) becomes `result`.
struct Merge {
  int32_t left, right, result;
};

// Byte-pair encoding: starts from one token per byte and merges the adjacent pair of lowest rank,
// the leftmost on ties, until no pair has a merge.
//
// That definition is run only where nothing faster gives the same ids: a piece that is one token is
// looked up, another short one is remembered, and a long one is merged window by window.
//
// Threading: const after construction; each thread brings its own Scratch.
class Bpe {
  static constexpr uint32_t kNone = 0xffffffff;  // no rank, no position, end of a list

  struct Outcome {  // of merging a pair
    uint32_t rank = kNone;  // it stays a pair
    int32_t result = -1;
  };

 public:
  // Buffers and a cache of short pieces. Results do not depend on what is in it. It serves one
  // Bpe; given to another it starts afresh.
  class Scratch {
   public:
    // Bytes of the longest text that was merged at once, if that took a heap.
    size_t longest_merged() const { return nodes.capacity(); }

   private:
    friend class Bpe;
    struct CacheEntry {  // all zero when empty
      static constexpr size_t kMaxIds = 4;
      ShortWord word;
      std::array<int32_t, kMaxIds> ids{};  // ended by -1 if fewer
    };
    struct Node {  // of a list of tokens; its index is the position of its first byte
      int32_t id;
      Outcome outcome;  // of merging it with the next node
      uint32_t previous, next;
    };
    const void* owner = nullptr;
    std::vector<CacheEntry> cache;  // a piece has one place; the size is a power of two
    size_t num_cached = 0;          // since the cache has this size
    CacheEntry& place(const ShortWord& word) {
      return cache[hash(word) >> 40 & (cache.size() - 1)];
    }
    std::vector<Node> nodes;
    std::vector<uint64_t> candidates;  // heap of ranks and positions, some of them out of date
  };

  // `merges` in order of rank; of two merges of one pair the later counts, as in a map filled
  // in order. Requires: ids and the number of merges are below 2^24.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  static constexpr size_t kMostPieces = 32;

  // Appends the ids of the pieces that `text` begins with, one after the other, given by their
  // sizes. What follows them makes no difference but to the speed.
  // Requires: at most kMostPieces; 0 < size < 2^32; the sizes sum up to text.size() at most.
  void encode(std::string_view text, std::span<const size_t> sizes, Scratch& scratch,
              std::vector<int32_t>& ids) const;

 private:
  struct Entry {  // of an open-addressing table, half full at most
    int32_t left = -1, right = -1;
    Outcome outcome;
  };

  // A piece that is one token. Also half full at most.
  struct Word {
    static constexpr size_t kMaxSize = 12;
    // As in ShortWord, except for the id in bytes 12 to 14.
    uint64_t low = 0, high = 0;
  };

  size_t pair_slot(int32_t left, int32_t right) const {
    const uint64_t pair = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
    return pair * 0x9e3779b97f4a7c15u >> merges_shift_;
  }
  Outcome outcome(int32_t left, int32_t right) const;
  size_t word_slot(const ShortWord& word) const { return hash(word) >> words_shift_; }
  std::optional<int32_t> find_word(const ShortWord& word) const;
  void prepare(Scratch& scratch) const;
  void fill_merges(std::span<const Merge> merges);
  void fill_words(std::span<const Merge> merges);
  void encode_cached(std::string_view piece, const ShortWord& word, Scratch& scratch,
                     std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  bool merge_windows(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  bool stay_apart(std::string_view piece, size_t cut, int32_t left, int32_t right,
                  Scratch& scratch) const;
  void add_candidate(uint32_t position, Scratch& scratch) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Outcome> byte_pairs_;  // [256 * 256]
  std::vector<Entry> merges_;
  std::vector<uint32_t> sizes_;   // by id: bytes
  std::vector<Word> words_;
  int merges_shift_ = 0, words_shift_ = 0;
  bool is_ordered_ = true;  // every merge comes after all merges that make its parts
};

}  // namespace millrace
