#include "kvcache/kv_layout.h"

#include <numeric>

#include "base/check.h"

namespace millrace {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t aligned(int64_t bytes) {
  return (bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

int64_t plane_bytes(const StatePlane& plane) {
  return aligned(plane.num_rows * plane.row_bytes());
}

// Puts a plane behind what is there.
void append(std::vector<StatePlane>& planes, int64_t& end, StatePlane plane) {
  plane.values_offset = end;
  end += plane_bytes(plane);
  planes.push_back(plane);
}

// Bytes of a row of `width` values: those of the values and those of the scales.
struct RowFormat {
  int64_t value_bytes, scale_bytes;
};
RowFormat fp4_row(int64_t width, int64_t values_per_scale) {
  return {width / 2, width / values_per_scale};
}
RowFormat fp8_row(int64_t width) { return {width, width / 32}; }

}  // namespace

std::string_view state_kind_name(StateKind kind) {
  switch (kind) {
    case StateKind::kCompressedRow:
      return "compressed rows";
    case StateKind::kIndexKey:
      return "index keys";
    case StateKind::kWindowRing:
      return "window rings";
    case StateKind::kOpenGroup:
      return "open groups";
    case StateKind::kDraftRing:
      return "draft rings";
  }
  return "unknown";
}

KvLayout kv_layout(const ModelConfig& config, KvFormat format, int64_t min_block_size) {
  MR_CHECK_OP(min_block_size, >=, 1);
  const bool is_fp32 = format == KvFormat::kFp32;
  const RowFormat fp32_key = {config.head_dim * kFloat, 0};
  const RowFormat row = is_fp32 ? fp32_key : fp4_row(config.head_dim, 16);
  const RowFormat index_key =
      is_fp32 ? RowFormat{config.index_head_dim * kFloat, 0} : fp4_row(config.index_head_dim, 32);
  const RowFormat window_key = is_fp32 ? fp32_key : fp8_row(config.head_dim);

  KvLayout layout;
  layout.format = format;
  int64_t multiple = 1;
  for (const int64_t source : config.kv_source_layer_ids) {
    multiple = std::lcm(multiple, config.compress_ratios[size_t(source)]);
  }
  layout.block_size = (min_block_size + multiple - 1) / multiple * multiple;

  for (const int64_t source : config.kv_source_layer_ids) {
    const int64_t ratio = config.compress_ratios[size_t(source)];
    const auto add = [&](StateKind kind, RowFormat format) {
      append(
          layout.block_planes, layout.block_bytes,
          {kind, source, ratio, layout.block_size / ratio, format.value_bytes, format.scale_bytes});
    };
    add(StateKind::kCompressedRow, row);
    add(StateKind::kIndexKey, index_key);
  }

  const auto add = [&](StateKind kind, int64_t layer, int64_t num_rows, RowFormat format) {
    append(layout.slot_planes, layout.slot_bytes,
           {kind, layer, 1, num_rows, format.value_bytes, format.scale_bytes});
  };
  // Rows of a draft that is not accepted are written, too; what they overwrite must not be among
  // the keys that the accepted ones still need.
  const int64_t ring_rows = config.sliding_window + config.dspark_block_size;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    add(StateKind::kWindowRing, layer, ring_rows, window_key);
  }
  for (const int64_t source : config.kv_source_layer_ids) {
    const int64_t ratio = config.compress_ratios[size_t(source)];
    if (ratio > 1) {
      add(StateKind::kOpenGroup, source, ratio - 1, {2 * config.head_dim * kFloat, 0});
    }
  }
  // Draft rings only ever receive accepted positions.
  for (int64_t stage = 0; stage < config.num_nextn_predict_layers; ++stage) {
    add(StateKind::kDraftRing, stage, config.sliding_window, window_key);
  }
  return layout;
}

const StatePlane& KvLayout::plane(StateKind kind, int64_t layer) const {
  for (const std::vector<StatePlane>* planes : {&block_planes, &slot_planes}) {
    for (const StatePlane& plane : *planes) {
      if (plane.kind == kind && plane.layer == layer) return plane;
    }
  }
  MR_CHECK(!"no plane of this kind and layer");
  return block_planes.front();
}

int64_t KvLayout::bytes(StateKind kind) const {
  int64_t sum = 0;
  for (const std::vector<StatePlane>* planes : {&block_planes, &slot_planes}) {
    for (const StatePlane& plane : *planes) {
      if (plane.kind == kind) sum += plane_bytes(plane);
    }
  }
  return sum;
}

}  // namespace millrace
