#include "checkpoint/expert_source.h"

#include <algorithm>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

Result<std::vector<ExpertWeights>> open_layer(const WeightSource& weights, std::string_view prefix,
                                              int64_t num_experts) {
  std::vector<ExpertWeights> experts(static_cast<size_t>(num_experts));
  for (size_t e = 0; e < experts.size(); ++e) {
    const std::string name = format(prefix, ".ffn.experts.", e);
    ASSIGN_OR_RETURN(experts[e].w1, weights.fp4_matrix(name + ".w1"));
    ASSIGN_OR_RETURN(experts[e].w2, weights.fp4_matrix(name + ".w2"));
    ASSIGN_OR_RETURN(experts[e].w3, weights.fp4_matrix(name + ".w3"));
  }
  return experts;
}

}  // namespace

Result<MappedExpertSource> MappedExpertSource::open(const ModelConfig& config,
                                                    const WeightSource& weights) {
  std::vector<std::vector<ExpertWeights>> layers;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ASSIGN_OR_RETURN(std::vector<ExpertWeights> experts,
                     open_layer(weights, format("layers.", l), config.n_routed_experts));
    layers.push_back(std::move(experts));
  }
  for (int64_t stage = 0; stage < config.num_nextn_predict_layers; ++stage) {
    ASSIGN_OR_RETURN(std::vector<ExpertWeights> experts,
                     open_layer(weights, format("mtp.", stage), config.dspark_n_routed_experts));
    layers.push_back(std::move(experts));
  }
  return MappedExpertSource(std::move(layers));
}

MappedExpertSource::MappedExpertSource(std::vector<std::vector<ExpertWeights>> layers)
    : layers_(std::move(layers)) {
  size_t most = 0;
  for (const std::vector<ExpertWeights>& experts : layers_) most = std::max(most, experts.size());
  loaded_.resize(most);
}

ExpertLease MappedExpertSource::acquire(int64_t layer, std::span<const int32_t> ids) {
  MR_CHECK(!is_leased_);
  MR_CHECK_OP(layer, >=, 0);
  MR_CHECK_OP(layer, <, int64_t(layers_.size()));
  const std::vector<ExpertWeights>& experts = layers_[size_t(layer)];
  MR_CHECK_OP(ids.size(), <=, experts.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    MR_CHECK_OP(id, >=, 0);
    MR_CHECK_OP(id, <, int64_t(experts.size()));
    loaded_[i] = {int64_t(i), &experts[size_t(id)]};
  }
  left_ = std::span(loaded_).first(ids.size());
  is_leased_ = true;
  return ExpertLease(*this);
}

Result<std::span<const LoadedExpert>> MappedExpertSource::next() {
  return std::exchange(left_, {});
}

void MappedExpertSource::release() noexcept { is_leased_ = false; }

}  // namespace millrace
