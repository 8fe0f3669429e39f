#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kvstore/kv_store.h"
#include "model/batch.h"
#include "model/numerics.h"
#include "model_config/model_config.h"

namespace millrace {

// One sequence with a store of its own: for comparison with other programs, outside an engine.
class LoneSequence {
 public:
  // Room for `max_tokens`; memory is used as the sequence grows.
  static Result<LoneSequence> create(const ModelConfig& config, Numerics numerics,
                                     int64_t max_tokens);

  KvStore& store() { return *store_; }
  StateSlot slot() const { return 0; }
  int64_t num_tokens() const { return int64_t(tokens_.size()); }

  // A sequence that goes on from here on its own.
  Result<LoneSequence> clone() const;
  // Everything that later tokens may read, byte for byte.
  std::vector<std::byte> state_bytes() const;

  // The segment that computes `token_ids` after those of earlier calls. Valid until the next call.
  BatchSegment append(std::span<const int32_t> token_ids, LogitsFor logits);

 private:
  LoneSequence(KvStore store, std::vector<BlockId> block_table);

  std::unique_ptr<KvStore> store_;  // stays at its address when the sequence moves
  std::vector<BlockId> block_table_;
  std::vector<int32_t> tokens_;
};

}  // namespace millrace
