#pragma once

// Configs to make checkpoints from: named shapes, and changes of their sizes.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model_config/model_config.h"

namespace millrace {

// Names of the shapes:
//   v4.1            the release
//   mini            every mechanism at small sizes: 15 million parameters
//   real-structure  small widths under the release's layer map, window, index and candidates
std::span<const std::string_view> shape_names();

// A complete config. Requires: a name of shape_names().
ModelConfig named_shape(std::string_view name);

// What may be changed about a shape. Absent: as the shape has it.
struct SizeChanges {
  std::optional<int64_t> layers;   // the first so many
  std::vector<int64_t> layer_ids;  // or these, ascending; empty: all that `layers` leaves
  std::optional<int64_t> experts;  // per layer; draft stages never have more than they had
  std::optional<int64_t> hidden;
  std::optional<int64_t> vocab;
  std::optional<int64_t> engram_rows;  // about so many per table; 0: no Engram
  std::optional<int64_t> draft;        // stages
  bool vision = true;                  // false: without the vision tower
};

// Changes `config` so that what follows from the sizes fits them again: layers refer only to
// layers that are left, special token ids to tokens that are left. Does not complete it. Errors
// name the flag that `synth` has for the size.
Status apply(const SizeChanges& changes, ModelConfig& config);

}  // namespace millrace
