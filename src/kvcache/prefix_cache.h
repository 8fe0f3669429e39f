#pragma once

// Which blocks hold which tokens, so that a prompt that begins like an earlier one need not be
// computed again. docs/prefix-cache.md explains what a hit needs and what it costs.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/slot_pool.h"
#include "request/step.h"

namespace millrace {

struct PrefixNode;
struct PrefixSnapshot;

// A tree of whole blocks below one root for each salt: a node stands for the tokens of its block
// behind those of its parent. Nodes are found by a hash and believed after their tokens have been
// compared. Below a node there may be snapshots: copies of a sequence's slot at a position inside
// the next block.
//
// A node holds one reference to its block and a sequence one to each block of its table. A node
// whose block no sequence refers to is idle and can be evicted; those above it become idle after
// it. A snapshot has a slot of its own, and a block of its own for the rows of its last tokens.
//
// Invariant: the block tables of sequences begin with the blocks of the node they were given.
// Threading: not thread-safe; owned by the scheduler. Pool and slots must outlive it.
class PrefixCache {
 public:
  using Hash = uint64_t (*)(const void* bytes, size_t num_bytes, uint64_t seed);
  struct Options {
    int64_t block_size = 0;
    int32_t vocab_size = 0;
    int64_t max_num_snapshots = 0;
    Hash hash = nullptr;  // none: a good one. For tests of what a bad one does
  };

  PrefixCache(const Options& options, BlockPool& blocks, SlotPool& slots);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Hit {
    PrefixNode* node = nullptr;  // the deepest whose tokens these begin with; null: there is none
    int64_t num_tokens = 0;      // up to it
    // The one with the most tokens, of those that leave at least one to be computed.
    PrefixSnapshot* snapshot = nullptr;
    PrefixNode* snapshot_node = nullptr;  // null: it has no whole block
    int64_t num_snapshot_tokens = 0;
  };
  // Valid until something is evicted.
  Hit find(std::string_view salt, std::span<const int32_t> tokens);

  // Appends the node's blocks, which the caller owns a reference of from now on.
  void acquire(PrefixNode& node, std::vector<BlockId>& block_table);
  void touch(PrefixSnapshot& snapshot);  // it was of use

  // A sequence has computed all tokens of `block`, which follows `parent`'s; null: it is the first.
  // If there is an equal block already, the sequence gets that one instead of its own.
  PrefixNode& insert(PrefixNode* parent, std::string_view salt, std::span<const int32_t> tokens,
                     BlockId& block);
  // The sequence whose blocks began with this node's has released them.
  void release(PrefixNode& node);

  // Whether a snapshot behind the node's tokens and those of `tail`, fewer than a block, is wanted:
  // there is none, and there is room, if need be another's. Then a slot is free for it.
  bool prepare_snapshot(PrefixNode* node, std::string_view salt, std::span<const int32_t> tail);
  // After prepare_snapshot(): takes over `slot`, which holds the state there, and the one reference
  // to `last_block`, which holds the rows of `tail`; none: the tail is empty. `value` is what a hit
  // saves, in any unit.
  void add_snapshot(PrefixNode* node, std::string_view salt, std::span<const int32_t> tail,
                    std::optional<BlockId> last_block, StateSlot slot, double value);
  // What a snapshot holds. Valid until something is evicted; a copy that the next plan makes of it
  // may come later, because copies come before everything that could overwrite it.
  static StateSlot slot(const PrefixSnapshot& snapshot);
  static std::optional<BlockId> last_block(const PrefixSnapshot& snapshot);

  // How many of the node's blocks no sequence refers to.
  int64_t num_idle_blocks(const PrefixNode& node) const;
  // Frees the block that is needed least, and perhaps more. False: sequences need them all.
  bool evict_block();
  // Blocks that it can free, one after the other.
  int64_t num_evictable_blocks() const {
    return int64_t(once_.size() + protected_.size()) + num_snapshot_blocks_;
  }

  // From now on nothing of what is there is found.
  void reset();

  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_snapshots() const { return int64_t(by_priority_.size()); }
  int64_t bookkeeping_bytes() const;
  void check_invariants() const;
  // For the accounts of who owns the pools: how often each block and slot is held here.
  void count_holdings(std::vector<int32_t>& blocks, std::vector<int32_t>& slots) const;
  // Whether a block table begins with the node's blocks, and those are `num_blocks`. Null: none.
  bool is_prefix_of(const PrefixNode* node, int64_t num_blocks,
                    std::span<const BlockId> block_table) const;

 private:
  using List = std::list<PrefixNode*>;

  PrefixNode& node_or_root(PrefixNode* node, std::string_view salt);
  PrefixNode* find_child(const PrefixNode& parent, uint64_t hash) const;
  uint64_t pack(const PrefixNode& parent, std::span<const int32_t> tokens);
  void move_to(List& list, PrefixNode& node);
  void drop(PrefixSnapshot& snapshot);
  void drop(PrefixNode& node);
  void drop_if_unused(PrefixNode& root);

  Options options_;
  int bits_per_token_;
  BlockPool& blocks_;
  SlotPool& slots_;

  std::map<std::string, std::unique_ptr<PrefixNode>, std::less<>> roots_;
  std::list<std::unique_ptr<PrefixNode>> detached_roots_;  // of nodes in use at a reset
  std::unordered_multimap<uint64_t, std::unique_ptr<PrefixNode>> nodes_;
  // Every node but roots is in one of them, the one to be evicted first in front.
  List in_use_;  // in any order
  List once_;       // idle; nothing has been found there yet
  List protected_;  // idle; something has
  int64_t num_nodes_ = 0;

  std::set<std::pair<double, PrefixSnapshot*>> by_priority_;
  int64_t num_snapshot_blocks_ = 0;
  double clock_ = 0;  // priority of the snapshot that was evicted last
  std::vector<uint8_t> packed_;  // tokens of one block
};

}  // namespace millrace
