#include "kvcache/prefix_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace millrace {

struct PrefixSnapshot {
  PrefixNode* node = nullptr;
  std::vector<int32_t> tail;
  std::optional<BlockId> last_block;
  StateSlot slot = -1;
  double value = 0;
  double priority = 0;
};

struct PrefixNode {
  PrefixNode* parent = nullptr;  // null: a root, which has no block
  int64_t depth = 0;             // blocks up to this one
  uint64_t hash = 0;             // of all tokens up to here, and of the salt
  std::unique_ptr<uint8_t[]> tokens;  // packed
  BlockId block = -1;
  int32_t num_children = 0;
  bool is_detached = false;  // a root that is not found any more
  bool has_been_found = false;
  std::list<PrefixNode*>* list = nullptr;
  std::list<PrefixNode*>::iterator place;
  std::vector<std::unique_ptr<PrefixSnapshot>> snapshots;
};

namespace {

uint64_t xxh3(const void* bytes, size_t num_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, num_bytes, seed);
}

PrefixNode& root_of(PrefixNode& node) {
  PrefixNode* n = &node;
  while (n->parent) n = n->parent;
  return *n;
}

bool has_snapshot(const PrefixNode& node, std::span<const int32_t> tail) {
  return std::any_of(node.snapshots.begin(), node.snapshots.end(), [&](const auto& s) {
    return std::equal(s->tail.begin(), s->tail.end(), tail.begin(), tail.end());
  });
}

}  // namespace

PrefixCache::PrefixCache(const Options& options, BlockPool& blocks, SlotPool& slots)
    : options_(options),
      bits_per_token_(std::bit_width(uint32_t(std::max(1, options.vocab_size - 1)))),
      blocks_(blocks),
      slots_(slots),
      packed_(size_t(options.block_size * bits_per_token_ + 7) / 8) {
  MR_CHECK_OP(options.block_size, >=, 1);
  MR_CHECK_OP(options.vocab_size, >=, 1);
  MR_CHECK_OP(options.max_num_snapshots, >=, 0);
  if (!options_.hash) options_.hash = &xxh3;
}

PrefixCache::~PrefixCache() = default;

// --- Finding ------------------------------------------------------------------------------------

// Leaves the tokens in packed_ and returns the hash of their node.
uint64_t PrefixCache::pack(const PrefixNode& parent, std::span<const int32_t> tokens) {
  MR_DCHECK(int64_t(tokens.size()) == options_.block_size);
  uint64_t bits = 0;
  int num_bits = 0;
  uint8_t* out = packed_.data();
  for (const int32_t token : tokens) {
    MR_DCHECK(0 <= token && token < options_.vocab_size);
    bits |= uint64_t(uint32_t(token)) << num_bits;
    for (num_bits += bits_per_token_; num_bits >= 8; num_bits -= 8, bits >>= 8) {
      *out++ = uint8_t(bits);
    }
  }
  if (num_bits > 0) *out++ = uint8_t(bits);
  return options_.hash(packed_.data(), packed_.size(), parent.hash);
}

// The child whose tokens are those in packed_.
PrefixNode* PrefixCache::find_child(const PrefixNode& parent, uint64_t hash) const {
  const auto [begin, end] = nodes_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    PrefixNode& node = *entry->second;
    if (node.parent == &parent &&
        std::memcmp(node.tokens.get(), packed_.data(), packed_.size()) == 0) {
      return &node;
    }
  }
  return nullptr;
}

PrefixCache::Hit PrefixCache::find(std::string_view salt, std::span<const int32_t> tokens) {
  Hit hit;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return hit;
  PrefixNode* node = root->second.get();
  const int64_t num_tokens = int64_t(tokens.size());
  while (node) {
    const int64_t begin = node->depth * options_.block_size;
    if (begin > 0) {
      hit.node = node;
      hit.num_tokens = begin;
    }
    const std::span<const int32_t> rest = tokens.subspan(size_t(begin));
    for (const std::unique_ptr<PrefixSnapshot>& s : node->snapshots) {
      const int64_t end = begin + int64_t(s->tail.size());
      if (end >= num_tokens || (hit.snapshot && end <= hit.num_snapshot_tokens)) continue;
      if (!std::equal(s->tail.begin(), s->tail.end(), rest.begin())) continue;
      hit.snapshot = s.get();
      hit.snapshot_node = begin > 0 ? node : nullptr;
      hit.num_snapshot_tokens = end;
    }
    if (int64_t(rest.size()) < options_.block_size) break;
    node = find_child(*node, pack(*node, rest.first(size_t(options_.block_size))));
  }
  return hit;
}

// --- Sequences ----------------------------------------------------------------------------------

void PrefixCache::move_to(List& list, PrefixNode& node) {
  list.splice(list.end(), *node.list, node.place);
  node.list = &list;
}

void PrefixCache::acquire(PrefixNode& node, std::vector<BlockId>& block_table) {
  const size_t begin = block_table.size();
  block_table.resize(begin + size_t(node.depth));
  for (PrefixNode* n = &node; n->parent; n = n->parent) {
    blocks_.retain(n->block);
    block_table[begin + size_t(n->depth) - 1] = n->block;
    n->has_been_found = true;
    move_to(in_use_, *n);
  }
}

PrefixNode& PrefixCache::node_or_root(PrefixNode* node, std::string_view salt) {
  if (node) return *node;
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return *found->second;
  auto root = std::make_unique<PrefixNode>();
  root->hash = options_.hash(salt.data(), salt.size(), 0);
  return *roots_.emplace(salt, std::move(root)).first->second;
}

PrefixNode& PrefixCache::insert(PrefixNode* parent_or_none, std::string_view salt,
                                std::span<const int32_t> tokens, BlockId& block) {
  PrefixNode& parent = node_or_root(parent_or_none, salt);
  const uint64_t hash = pack(parent, tokens);
  if (PrefixNode* equal = find_child(parent, hash)) {
    blocks_.retain(equal->block);
    blocks_.release(block);
    block = equal->block;
    move_to(in_use_, *equal);
    return *equal;
  }
  auto made = std::make_unique<PrefixNode>();
  PrefixNode& node = *made;
  node.parent = &parent;
  node.depth = parent.depth + 1;
  node.hash = hash;
  node.tokens = std::make_unique<uint8_t[]>(packed_.size());
  std::memcpy(node.tokens.get(), packed_.data(), packed_.size());
  node.block = block;
  node.list = &in_use_;
  node.place = in_use_.insert(in_use_.end(), &node);
  nodes_.emplace(hash, std::move(made));
  blocks_.retain(block);
  ++parent.num_children;
  ++num_nodes_;
  return node;
}

void PrefixCache::release(PrefixNode& node) {
  const bool is_detached = root_of(node).is_detached;
  PrefixNode* n = &node;
  while (n && blocks_.num_references(n->block) == 1) {
    PrefixNode* parent = n->parent->parent ? n->parent : nullptr;  // roots may go with their last
    if (is_detached) {
      drop(*n);
    } else {
      move_to(n->has_been_found ? protected_ : once_, *n);
    }
    n = parent;
  }
  // What was found once is not for ever: at most this share of the blocks is protected.
  while (int64_t(protected_.size()) > blocks_.num_blocks() / 4 * 3) {
    protected_.front()->has_been_found = false;
    move_to(once_, *protected_.front());
  }
}

// --- Snapshots ----------------------------------------------------------------------------------

bool PrefixCache::prepare_snapshot(PrefixNode* node, std::string_view salt,
                                   std::span<const int32_t> tail) {
  if (options_.max_num_snapshots == 0) return false;
  if (node && root_of(*node).is_detached) return false;
  const auto root = roots_.find(salt);
  const PrefixNode* at = node ? node : root == roots_.end() ? nullptr : root->second.get();
  if (at && has_snapshot(*at, tail)) return false;
  if (num_snapshots() < options_.max_num_snapshots) return true;
  PrefixSnapshot& least = *by_priority_.begin()->second;
  clock_ = least.priority;
  drop(least);
  return true;
}

void PrefixCache::add_snapshot(PrefixNode* node_or_none, std::string_view salt,
                               std::span<const int32_t> tail, std::optional<BlockId> last_block,
                               StateSlot slot, double value) {
  MR_CHECK_OP(int64_t(tail.size()), <, options_.block_size);
  MR_CHECK_OP(tail.empty(), ==, !last_block);
  MR_CHECK_OP(num_snapshots(), <, options_.max_num_snapshots);
  PrefixNode& node = node_or_root(node_or_none, salt);
  auto snapshot = std::make_unique<PrefixSnapshot>();
  snapshot->node = &node;
  snapshot->tail.assign(tail.begin(), tail.end());
  snapshot->last_block = last_block;
  snapshot->slot = slot;
  snapshot->value = value;
  snapshot->priority = clock_ + value;
  if (last_block) {
    MR_CHECK_OP(blocks_.num_references(*last_block), ==, 1);
    ++num_snapshot_blocks_;
  }
  by_priority_.emplace(snapshot->priority, snapshot.get());
  node.snapshots.push_back(std::move(snapshot));
}

// Greedy dual: what is of use is as good as new, and what is not grows old with each eviction.
void PrefixCache::touch(PrefixSnapshot& snapshot) {
  by_priority_.erase({snapshot.priority, &snapshot});
  snapshot.priority = clock_ + snapshot.value;
  by_priority_.emplace(snapshot.priority, &snapshot);
}

StateSlot PrefixCache::slot(const PrefixSnapshot& snapshot) { return snapshot.slot; }
std::optional<BlockId> PrefixCache::last_block(const PrefixSnapshot& snapshot) {
  return snapshot.last_block;
}

// --- Eviction -----------------------------------------------------------------------------------

void PrefixCache::drop(PrefixSnapshot& snapshot) {
  PrefixNode& node = *snapshot.node;
  by_priority_.erase({snapshot.priority, &snapshot});
  slots_.release(snapshot.slot);
  if (snapshot.last_block) {
    blocks_.release(*snapshot.last_block);
    --num_snapshot_blocks_;
  }
  const auto at = std::find_if(node.snapshots.begin(), node.snapshots.end(),
                               [&](const auto& s) { return s.get() == &snapshot; });
  node.snapshots.erase(at);
  drop_if_unused(node);
}

void PrefixCache::drop(PrefixNode& node) {
  MR_CHECK_OP(node.num_children, ==, 0);
  MR_CHECK_OP(blocks_.num_references(node.block), ==, 1);
  while (!node.snapshots.empty()) drop(*node.snapshots.back());
  blocks_.release(node.block);
  node.list->erase(node.place);
  --num_nodes_;
  PrefixNode& parent = *node.parent;
  --parent.num_children;
  const auto [begin, end] = nodes_.equal_range(node.hash);
  nodes_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second.get() == &node; }));
  drop_if_unused(parent);
}

// Only roots go by themselves.
void PrefixCache::drop_if_unused(PrefixNode& node) {
  if (node.parent || node.num_children > 0 || !node.snapshots.empty()) return;
  if (node.is_detached) {
    detached_roots_.remove_if([&](const auto& root) { return root.get() == &node; });
  } else {
    std::erase_if(roots_, [&](const auto& root) { return root.second.get() == &node; });
  }
}

int64_t PrefixCache::num_idle_blocks(const PrefixNode& node) const {
  int64_t num = 0;
  const PrefixNode* n = &node;
  for (; n->parent && blocks_.num_references(n->block) == 1; n = n->parent) ++num;
  return num;
}

bool PrefixCache::evict_block() {
  for (List* list : {&once_, &protected_}) {
    if (list->empty()) continue;
    drop(*list->front());
    return true;
  }
  for (const auto& [priority, snapshot] : by_priority_) {
    if (!snapshot->last_block) continue;
    drop(*snapshot);
    return true;
  }
  return false;
}

void PrefixCache::reset() {
  while (!by_priority_.empty()) drop(*by_priority_.begin()->second);
  while (!once_.empty() || !protected_.empty()) evict_block();
  for (auto& [salt, root] : roots_) {
    root->is_detached = true;
    detached_roots_.push_back(std::move(root));
  }
  roots_.clear();
}

// --- Accounts -----------------------------------------------------------------------------------

int64_t PrefixCache::bookkeeping_bytes() const {
  // Beside a node: its pointer and links in the table and in a list.
  constexpr int64_t kLinks = 5 * sizeof(void*) + 3 * sizeof(void*);
  int64_t bytes = num_nodes_ * int64_t(sizeof(PrefixNode) + packed_.size() + kLinks);
  return bytes + num_snapshots() * (int64_t(sizeof(PrefixSnapshot)) + kLinks +
                                    options_.block_size * int64_t(sizeof(int32_t)));
}

void PrefixCache::count_holdings(std::vector<int32_t>& blocks, std::vector<int32_t>& slots) const {
  for (const auto& [hash, node] : nodes_) ++blocks[size_t(node->block)];
  for (const auto& [priority, s] : by_priority_) {
    ++slots[size_t(s->slot)];
    if (s->last_block) ++blocks[size_t(*s->last_block)];
  }
}

bool PrefixCache::is_prefix_of(const PrefixNode* node, int64_t num_blocks,
                               std::span<const BlockId> table) const {
  if ((node ? node->depth : 0) != num_blocks) return false;
  for (; node && node->parent; node = node->parent) {
    const size_t i = size_t(node->depth) - 1;
    if (i >= table.size() || table[i] != node->block) return false;
  }
  return true;
}

void PrefixCache::check_invariants() const {
  std::unordered_map<const PrefixNode*, int64_t> order, num_children, num_snapshots;
  for (const List* list : {&once_, &protected_, &in_use_}) {
    for (const PrefixNode* node : *list) {
      MR_CHECK(node->list == list);
      MR_CHECK(*node->place == node);
      MR_CHECK_OP(node->depth, ==, node->parent->depth + 1);
      MR_CHECK_OP(blocks_.num_references(node->block) == 1, ==, list != &in_use_);
      if (list != &in_use_) MR_CHECK_OP(node->has_been_found, ==, list == &protected_);
      order.emplace(node, int64_t(order.size()));
      ++num_children[node->parent];
    }
  }
  MR_CHECK_OP(int64_t(order.size()), ==, num_nodes_);
  MR_CHECK_OP(int64_t(nodes_.size()), ==, num_nodes_);
  for (const auto& [node, place] : order) {
    const PrefixNode* parent = node->parent;
    if (!parent->parent) continue;
    if (node->list == &in_use_) {
      MR_CHECK(parent->list == &in_use_);
    } else {
      MR_CHECK_OP(order.at(parent), >, place);  // never evicted before its children
    }
  }
  for (const auto& [hash, node] : nodes_) {
    MR_CHECK_OP(hash, ==, node->hash);
    MR_CHECK_OP(node->num_children, ==, num_children[node.get()]);
  }
  int64_t num_blocks = 0;
  for (const auto& [priority, s] : by_priority_) {
    MR_CHECK_OP(priority, ==, s->priority);
    MR_CHECK(slots_.is_in_use(s->slot));
    if (s->last_block) MR_CHECK_OP(blocks_.num_references(*s->last_block), ==, 1);
    num_blocks += s->last_block ? 1 : 0;
    ++num_snapshots[s->node];
  }
  MR_CHECK_OP(num_blocks, ==, num_snapshot_blocks_);
  MR_CHECK_OP(this->num_snapshots(), <=, options_.max_num_snapshots);
  for (const auto& [node, count] : num_snapshots) {
    MR_CHECK_OP(int64_t(node->snapshots.size()), ==, count);
  }
  for (const auto& [salt, root] : roots_) {
    MR_CHECK(!root->is_detached);
    MR_CHECK(root->num_children > 0 || !root->snapshots.empty());
    MR_CHECK_OP(root->num_children, ==, num_children[root.get()]);
  }
  for (const auto& root : detached_roots_) {
    MR_CHECK(root->is_detached);
    MR_CHECK_OP(root->num_children, >, 0);
  }
}

}  // namespace millrace
