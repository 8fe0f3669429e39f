#pragma once

// The step of a whole model, composed of measured layers: a prediction, not a measurement. A slice
// with one layer of each kind is measured; a layer of the model takes what the layer of its kind
// took. The slice may have fewer experts: the products of the routed experts are composed of the
// time that one expert takes with so many rows, and of how many experts can be expected to have
// that many.
//
// Pure: numbers in, numbers out.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model_config/layer_map.h"
#include "model_config/model_config.h"

namespace millrace {

enum class StepPart {
  kAttentionProducts,  // and those of the compressor
  kAttention,
  kIndexing,  // products, scores and selection
  kExperts,   // router, routed and shared experts
  kEngram,
  kHyperConnections,
  kRest,  // norms, rotations, rounding, and what lies between operations
  kEmbedding,
  kHead,
};
inline constexpr int kNumStepParts = 9;

std::string_view step_part_name(StepPart part);

// Nanoseconds of each part.
struct StepTime {
  std::array<double, kNumStepParts> ns{};

  double& of(StepPart part) { return ns[size_t(part)]; }
  double of(StepPart part) const { return ns[size_t(part)]; }
  double total_ns() const;
  void add(const StepTime& other, double times = 1);
};

// The part that a kernel's call belongs to. `weight` is the name of the weight that a product is
// made with, as in cost.h; empty otherwise.
StepPart part_of(std::string_view kernel, std::string_view weight);

// Whether a call depends on how many experts a layer has: the router and the routed experts.
bool depends_on_expert_count(std::string_view kernel, std::string_view weight);

// Layers of one kind do the same work: "window", "ratio 2 source", "ratio 1 reader + engram", ...
std::string layer_kind(const LayerInfo& layer);

// The time that one expert's three products take for so many rows.
struct ExpertTime {
  int64_t rows;
  double ns;
};

// By the line between the two measurements around it, or beyond the last two.
// Requires: ascending, at least two.
double expert_ns(std::span<const ExpertTime> measured, double rows);

// [r] how many of `num_experts` can be expected to have r of `num_rows` rows, each of which
// chooses `experts_per_token` with the same chance.
std::vector<double> expected_experts(int64_t num_experts, int64_t experts_per_token,
                                     int64_t num_rows);

// What was measured of a step.
struct MeasuredStep {
  int64_t num_rows = 0;                   // of all sequences
  std::map<std::string, StepTime> layers;  // by kind, without what depends on the expert count
  double embedding_ns = 0, head_ns = 0;
  std::vector<ExpertTime> experts;
};

// The model whose step is predicted.
struct StepTarget {
  std::span<const LayerInfo> layers;
  int64_t num_experts = 0, experts_per_token = 0;
  double router_ns = 0;  // of one layer, with so many experts, for the step's rows
};

// Fails with the kinds of layers that were not measured.
Result<StepTime> predict_step(const MeasuredStep& measured, const StepTarget& target);

// What the step cannot do without: weights and state read once, operations of all products.
struct StepWork {
  double bytes = 0, flops = 0;
};

// Of a step of `rows` rows of each of `sequences` sequences that have `depth` tokens; each wants
// the logits of its last row.
StepWork step_work(const ModelConfig& config, int64_t sequences, int64_t rows, int64_t depth);

}  // namespace millrace
