#pragma once

// Where routed experts come from. They are most of the model's bytes and each step reads only a
// few, so a source may bring them from elsewhere when asked, while the caller does other work.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/weight_source.h"
#include "model_config/model_config.h"
#include "tensor/quantized.h"

namespace millrace {

// One expert: w2 (silu(w1 x) * w3 x).
struct ExpertWeights {
  Fp4Matrix w1;  // [moe_intermediate_size, hidden_size] gate
  Fp4Matrix w2;  // [hidden_size, moe_intermediate_size] down
  Fp4Matrix w3;  // [moe_intermediate_size, hidden_size] up
};

class ExpertLease;

// Layers are counted backbone first, then draft stages: num_hidden_layers + stage.
//
// Threading: acquire, wait and the end of a lease belong to one thread; the weights may be read
// by any thread between wait() and the end of the lease.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Asks for experts `ids` of `layer` and returns at once. Allocates nothing.
  // Requires: layer and ids in range.
  virtual ExpertLease acquire(int64_t layer, std::span<const int32_t> ids) = 0;

 protected:
  friend class ExpertLease;
  // The layer's experts by id, of which those asked for are readable.
  virtual Result<std::span<const ExpertWeights>> wait(uint64_t ticket) = 0;
  virtual void release(uint64_t ticket) noexcept = 0;
};

// The right to read the experts of one acquire(), until it is destroyed. Must not outlive its
// source.
class ExpertLease {
 public:
  ExpertLease(ExpertSource& source, uint64_t ticket) : source_(&source), ticket_(ticket) {}
  ExpertLease(ExpertLease&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)), ticket_(other.ticket_) {}
  ExpertLease& operator=(ExpertLease&& other) noexcept {
    std::swap(source_, other.source_);
    std::swap(ticket_, other.ticket_);
    return *this;
  }
  ~ExpertLease() {
    if (source_ != nullptr) source_->release(ticket_);
  }

  // Blocks until all experts asked for are readable. The span is indexed by expert id; entries
  // that were not asked for must not be read.
  Result<std::span<const ExpertWeights>> wait() { return source_->wait(ticket_); }

 private:
  ExpertSource* source_;
  uint64_t ticket_;
};

// Experts that are always readable: those of a mapped checkpoint, read by the page fault.
class MappedExpertSource : public ExpertSource {
 public:
  // Looks every expert of the config up in `weights`, which must outlive the result.
  static Result<MappedExpertSource> open(const ModelConfig& config, const WeightSource& weights);

  ExpertLease acquire(int64_t layer, std::span<const int32_t> ids) override;

 private:
  explicit MappedExpertSource(std::vector<std::vector<ExpertWeights>> layers)
      : layers_(std::move(layers)) {}
  Result<std::span<const ExpertWeights>> wait(uint64_t ticket) override;
  void release(uint64_t ticket) noexcept override;

  std::vector<std::vector<ExpertWeights>> layers_;  // [layer][expert]; a ticket is a layer
};

}  // namespace millrace
