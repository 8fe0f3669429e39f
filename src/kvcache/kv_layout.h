#pragma once

// What a sequence leaves behind for its later tokens, described once: every kind of state, how
// many bytes it takes, how long it lives and where it lies inside its block or slot. Sizes and
// offsets only; kvstore turns them into addresses.

#include <cstdint>
#include <string_view>
#include <vector>

#include "model_config/model_config.h"

namespace millrace {

enum class KvFormat {
  kQuantized,  // NVFP4 rows, MXFP4 index keys, MXFP8 window entries: exactly what was rounded
  kFp32,       // the same values in floats; never stored or sent
};

enum class StateKind {
  kCompressedRow,  // of a KV source layer: one per compress_ratio tokens
  kIndexKey,       // the same
  kWindowRing,     // of every layer: its last keys, the entry of position p at p mod num_rows
  kOpenGroup,      // of a KV source: value and gate, in fp32, of tokens whose row is not complete
  kDraftRing,      // of every draft stage: its last keys, likewise
};
inline constexpr int kNumStateKinds = 5;

std::string_view state_kind_name(StateKind kind);

// Rows of one kind and one layer, inside a block (compressed rows, index keys) or inside a
// sequence's slot (the rest): one after the other, each its values, then its scales.
struct StatePlane {
  StateKind kind = StateKind::kCompressedRow;
  int64_t layer = 0;           // of the backbone; of a draft ring the stage
  int64_t tokens_per_row = 1;  // in a block
  int64_t num_rows = 0;        // in a block or slot
  int64_t value_bytes = 0;     // of one row
  int64_t scale_bytes = 0;     // of one row; 0: none
  int64_t values_offset = 0;   // from the start of the block or slot; a multiple of kPlaneAlignment

  int64_t row_bytes() const { return value_bytes + scale_bytes; }
};

inline constexpr int64_t kPlaneAlignment = 64;
inline constexpr int64_t kDefaultBlockSize = 128;

struct KvLayout {
  KvFormat format = KvFormat::kQuantized;
  int64_t block_size = 0;                // tokens; a multiple of every compress ratio
  std::vector<StatePlane> block_planes;  // by KV source layer: its rows, its index keys
  int64_t block_bytes = 0;               // planes with their alignment
  std::vector<StatePlane> slot_planes;   // by kind, then layer
  int64_t slot_bytes = 0;

  // The plane of this kind and layer; there must be one.
  const StatePlane& plane(StateKind kind, int64_t layer) const;
  // What one kind takes with its alignment: of a block or a slot.
  int64_t bytes(StateKind kind) const;
  // Of what grows with the length: compressed rows, index keys, or both.
  double bytes_per_token(StateKind kind) const { return double(bytes(kind)) / double(block_size); }
  double bytes_per_token() const { return double(block_bytes) / double(block_size); }
};

// `min_block_size`, at least 1, is rounded up to a multiple of every compress ratio.
KvLayout kv_layout(const ModelConfig& config, KvFormat format,
                   int64_t min_block_size = kDefaultBlockSize);

}  // namespace millrace
