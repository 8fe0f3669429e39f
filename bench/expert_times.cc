#include "bench/expert_times.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace millrace {
namespace {

// Of one call: enough to be spread over threads, few enough to take seconds on two cores.
constexpr int64_t kMostRowsOfACall = 512;
constexpr int64_t kFewestExperts = 2;

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct QuantizedRows {
  std::vector<uint8_t> codes, scales;
  Fp8Rows rows;
};

// `values` [count, k] as the expert products take them.
QuantizedRows quantized(LoadedModel& model, const std::vector<float>& values, int64_t k) {
  const int64_t count = int64_t(values.size()) / k;
  QuantizedRows out{std::vector<uint8_t>(values.size()),
                    std::vector<uint8_t>(values.size() / size_t(kQuantBlock)),
                    {}};
  const MutableFp8Rows rows{{out.codes.data(), {count, k}},
                            {out.scales.data(), {count, k / kQuantBlock}}};
  model.kernels().quantize_fp8(model.kernel_context(), {values.data(), {count, k}}, rows);
  out.rows = rows;
  return out;
}

std::vector<float> normal_values(int64_t count, Random& random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = float(random.normal());
  return values;
}

// What experts multiply and write, for the largest case.
class ExpertInputs {
 public:
  ExpertInputs(LoadedModel& model, int64_t max_rows)
      : model_(model), hidden_(model.config().hidden_size),
        inner_(model.config().moe_intermediate_size) {
    Random random(1);
    x_ = quantized(model, normal_values(max_rows * hidden_, random), hidden_);
    // Spread as a gated product is.
    std::vector<float> z = normal_values(max_rows * inner_, random);
    for (float& v : z) v *= float(random.normal() / (1 + std::exp(-double(v))));
    z_ = quantized(model, z, inner_);
    const int64_t most = std::max({kMostRowsOfACall, kFewestExperts * max_rows,
                                   model.config().n_routed_experts});
    out_.resize(size_t(most * std::max(hidden_, inner_)));
    ids_.resize(size_t(most));
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  // The three products of some experts with `rows` rows each, at most max_rows. Nanoseconds.
  int64_t run(std::span<const LoadedExpert> experts, int64_t rows) {
    const int64_t count = int64_t(experts.size()) * rows;
    x_rows_.clear();
    for (int64_t r = 0; r < count; ++r) x_rows_.push_back(int32_t(r % rows));
    int64_t ns = 0;
    const auto product = [&](Fp4Matrix ExpertWeights::*matrix, const Fp8Rows& in, int64_t n) {
      groups_.clear();
      for (int64_t i = 0; i < int64_t(experts.size()); ++i) {
        groups_.push_back({experts[size_t(i)].weights->*matrix, i * rows, (i + 1) * rows});
      }
      const int64_t begin = now_ns();
      model_.kernels().matmul_fp4(model_.kernel_context(), in,
                                  {groups_, x_rows_, {ids_.data(), size_t(count)}},
                                  {out_.data(), {count, n}}, Rounding::kBf16);
      ns += now_ns() - begin;
    };
    product(&ExpertWeights::w1, x_.rows, inner_);
    product(&ExpertWeights::w3, x_.rows, inner_);
    product(&ExpertWeights::w2, z_.rows, hidden_);
    return ns;
  }

 private:
  LoadedModel& model_;
  const int64_t hidden_, inner_;
  QuantizedRows x_, z_;
  std::vector<float> out_;
  std::vector<int32_t> ids_, x_rows_;
  std::vector<RowGroups::Group> groups_;
};

}  // namespace

Result<std::vector<ExpertTries>> measure_experts(LoadedModel& model, int64_t max_rows,
                                                 int64_t tries) {
  const ModelConfig& config = model.config();
  ASSIGN_OR_RETURN(MappedExpertSource source,
                   MappedExpertSource::open(config, model.checkpoint()));
  ExpertInputs inputs(model, max_rows);
  std::vector<int32_t> ids(size_t(config.n_routed_experts));
  std::iota(ids.begin(), ids.end(), 0);
  const auto run = [&](int64_t layer, int64_t num_experts, int64_t rows) -> Result<int64_t> {
    ExpertLease lease = source.acquire(layer, {ids.data(), size_t(num_experts)});
    ASSIGN_OR_RETURN(const std::span<const LoadedExpert> experts, lease.next());
    return inputs.run(experts, rows);
  };
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {  // pages are mapped
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t ns, run(layer, config.n_routed_experts, 1));
  }
  std::vector<ExpertTries> all;
  int64_t layer = 0;
  for (int64_t rows = 1; rows <= max_rows; rows = std::max(rows + 1, rows * 3 / 2)) {
    ExpertTries measured{.rows = rows, .num_experts = 0, .ns = {}};
    measured.num_experts = std::min(std::max(kMostRowsOfACall / rows, kFewestExperts),
                                    config.n_routed_experts);
    for (int64_t i = 0; i < tries; ++i) {
      layer = (layer + 1) % config.num_hidden_layers;
      ASSIGN_OR_RETURN(const int64_t ns, run(layer, measured.num_experts, rows));
      measured.ns.push_back(double(ns) / double(measured.num_experts));
    }
    all.push_back(std::move(measured));
  }
  return all;
}

std::vector<double> measure_router(LoadedModel& model, int64_t num_experts, int64_t rows,
                                   int64_t tries) {
  const ModelConfig& config = model.config();
  const Bf16Matrix& head = model.model().weights.head;
  const int64_t count = std::min(num_experts, head.n), k = config.num_experts_per_tok;
  Random random(2);
  const std::vector<float> x = normal_values(rows * head.k, random), bias(size_t(count), 0.0f);
  const std::vector<const float*> biases(size_t(rows), bias.data());
  std::vector<float> logits(size_t(rows * count)), weights(size_t(rows * k));
  std::vector<int32_t> experts(size_t(rows * k));
  std::vector<double> all;
  for (int64_t i = 0; i < tries; ++i) {
    const int64_t first = (i * count) % (head.n - count + 1);
    const int64_t begin = now_ns();
    model.kernels().matmul_bf16(model.kernel_context(), {x.data(), {rows, head.k}},
                                {head.data + first * head.k, count, head.k},
                                {logits.data(), {rows, count}}, Rounding::kNone);
    model.kernels().route(model.kernel_context(), {logits.data(), {rows, count}}, biases,
                          float(config.routed_scaling_factor), config.norm_topk_prob,
                          {experts.data(), {rows, k}}, {weights.data(), {rows, k}});
    all.push_back(double(now_ns() - begin));
  }
  return all;
}

}  // namespace millrace
