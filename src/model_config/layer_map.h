#pragma once

// Which layer computes, shares and reads what. Policy only: ids, no state.

#include <cstdint>
#include <vector>

#include "model_config/model_config.h"

namespace millrace {

struct LayerInfo {
  int64_t compress_ratio = 0;  // 0: window only; tokens per compressed row otherwise
  // The layer whose compressed rows and index keys this layer reads; -1: none.
  int64_t kv_source = -1;
  // The layer whose selection of rows this layer reads; -1: none.
  int64_t index_source = -1;
  bool owns_compressor = false;        // writes compressed rows and index keys
  bool owns_index = false;             // has index queries and selects rows
  bool is_candidate_source = false;    // also keeps the best blocks of rows for later layers
  bool is_candidate_filtered = false;  // selects only among the candidate source's blocks
  int64_t engram_table = -1;           // index of its Engram table; -1: none
  bool is_draft_target = false;        // the mean of its input streams feeds the draft stages

  bool reads_compressed_rows() const { return kv_source >= 0; }
  bool has_engram() const { return engram_table >= 0; }
};

// One entry per backbone layer. Draft stages read only their window: a default LayerInfo.
std::vector<LayerInfo> layer_map(const ModelConfig& config);

}  // namespace millrace
