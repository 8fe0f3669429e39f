#include "bench/step_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/format.h"
#include "model_config/cost.h"

namespace millrace {

std::string_view step_part_name(StepPart part) {
  switch (part) {
    case StepPart::kAttentionProducts: return "attention_products";
    case StepPart::kAttention: return "attention";
    case StepPart::kIndexing: return "indexing";
    case StepPart::kExperts: return "experts";
    case StepPart::kEngram: return "engram";
    case StepPart::kHyperConnections: return "hyper_connections";
    case StepPart::kRest: return "rest";
    case StepPart::kEmbedding: return "embedding";
    case StepPart::kHead: return "head";
  }
  return "unknown";
}

double StepTime::total_ns() const { return std::accumulate(ns.begin(), ns.end(), 0.0); }

void StepTime::add(const StepTime& other, double times) {
  for (size_t i = 0; i < ns.size(); ++i) ns[i] += times * other.ns[i];
}

StepPart part_of(std::string_view kernel, std::string_view weight) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, kernel) != names.end();
  };
  if (weight.starts_with("attn.") || weight == "compressor") {
    return StepPart::kAttentionProducts;
  }
  if (weight.starts_with("indexer.")) return StepPart::kIndexing;
  if (weight.starts_with("ffn.")) return StepPart::kExperts;
  if (weight.starts_with("engram.")) return StepPart::kEngram;
  if (weight == "head") return StepPart::kHead;
  if (kernel == "attention") return StepPart::kAttention;
  if (kernel.starts_with("hc_")) return StepPart::kHyperConnections;
  if (is_one_of({"index_scores", "fake_quantize_mxfp4"})) return StepPart::kIndexing;
  if (is_one_of({"gather_fp8", "engram_update"})) return StepPart::kEngram;
  if (is_one_of({"route", "quantize_fp8", "swiglu", "combine_experts"})) return StepPart::kExperts;
  return StepPart::kRest;
}

bool depends_on_expert_count(std::string_view kernel, std::string_view weight) {
  return weight == "ffn.experts" || weight == "ffn.gate" || kernel == "route";
}

std::string layer_kind(const LayerInfo& layer) {
  std::string kind = "window";
  if (layer.reads_compressed_rows()) {
    kind = format("ratio ", layer.compress_ratio,
                  layer.owns_compressor ? " source"
                  : layer.owns_index    ? " index"
                                        : " reader");
    if (layer.is_candidate_source) kind += " of candidates";
    if (layer.is_candidate_filtered) kind += " among candidates";
  }
  if (layer.has_engram()) kind += " + engram";
  return kind;
}

double expert_ns(std::span<const ExpertTime> measured, double rows) {
  MR_CHECK_OP(measured.size(), >=, size_t{2});
  size_t i = 1;
  while (i + 1 < measured.size() && double(measured[i].rows) < rows) ++i;
  const ExpertTime &below = measured[i - 1], &above = measured[i];
  MR_CHECK_OP(below.rows, <, above.rows);
  const double slope = (above.ns - below.ns) / double(above.rows - below.rows);
  return below.ns + slope * (rows - double(below.rows));
}

std::vector<double> expected_experts(int64_t num_experts, int64_t experts_per_token,
                                     int64_t num_rows) {
  MR_CHECK_OP(experts_per_token, <=, num_experts);
  std::vector<double> expected(size_t(num_rows) + 1, 0.0);
  const double p = double(experts_per_token) / double(num_experts);
  if (experts_per_token == num_experts) {
    expected.back() = double(num_experts);
    return expected;
  }
  // Binomial, by logarithms: its terms are far smaller than a double can be.
  const double n = double(num_rows);
  for (int64_t r = 0; r <= num_rows; ++r) {
    const double k = double(r);
    const double log_chance = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                              k * std::log(p) + (n - k) * std::log1p(-p);
    expected[size_t(r)] = double(num_experts) * std::exp(log_chance);
  }
  return expected;
}

Result<StepTime> predict_step(const MeasuredStep& measured, const StepTarget& target) {
  StepTime step;
  std::map<std::string, int64_t> missing;
  for (const LayerInfo& layer : target.layers) {
    const std::string kind = layer_kind(layer);
    const auto found = measured.layers.find(kind);
    if (found == measured.layers.end()) ++missing[kind];
    else step.add(found->second);
  }
  if (!missing.empty()) {
    std::string kinds;
    for (const auto& [kind, count] : missing) {
      kinds += format(kinds.empty() ? "" : ", ", kind, " (", count, " layers)");
    }
    return Error{Code::kInvalidArgument, "not measured: " + kinds};
  }
  double experts_ns = target.router_ns;
  const std::vector<double> experts =
      expected_experts(target.num_experts, target.experts_per_token, measured.num_rows);
  for (size_t rows = 1; rows < experts.size(); ++rows) {
    experts_ns += experts[rows] * expert_ns(measured.experts, double(rows));
  }
  step.of(StepPart::kExperts) += experts_ns * double(target.layers.size());
  step.of(StepPart::kEmbedding) += measured.embedding_ns;
  step.of(StepPart::kHead) += measured.head_ns;
  return step;
}

StepWork step_work(const ModelConfig& config, int64_t sequences, int64_t rows, int64_t depth) {
  const double num_rows = double(sequences * rows);
  const double chance = double(config.num_experts_per_tok) / double(config.n_routed_experts);
  const double used_share = (1 - std::pow(1 - chance, num_rows)) / chance;  // of the costs' experts
  StepWork work;
  for (const OperationCost& cost : decode_costs(config, depth + (rows - 1) / 2)) {
    const bool is_per_row = cost.operation == "embed" || cost.operation == "engram.embed";
    const double times_read = is_per_row                         ? num_rows
                              : cost.operation == "ffn.experts" ? used_share
                                                                 : 1;
    work.bytes += cost.weight_bytes * times_read + cost.state_bytes * double(sequences);
    work.flops += cost.flops * (cost.operation == "head" ? double(sequences) : num_rows);
  }
  return work;
}

}  // namespace millrace
