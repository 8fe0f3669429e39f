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

// An expert that can be read.
struct LoadedExpert {
  int64_t idx;  // in the ids that were asked for
  const ExpertWeights* weights;
};

// What bringing experts has cost since the start. All 0 where nothing is brought.
struct ExpertReads {
  int64_t cache_bytes = 0;  // of memory for experts
  int64_t num_hits = 0;     // experts asked for that were there, or on their way
  int64_t num_misses = 0;   // that had to be read
  int64_t num_bytes = 0;    // read
  int64_t wait_ns = 0;      // for which nothing that was asked for was readable
};

class ExpertLease;

// Layers are counted backbone first, then draft stages: num_hidden_layers + stage.
//
// Threading: acquire, next and the end of a lease belong to one thread; the weights may be read
// by any thread until the lease's next call.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Asks for experts `ids` of `layer` and returns at once. Allocates nothing.
  // Requires: layer and ids in range, no id twice; the lease before has ended. `ids` must stay
  // until this one ends.
  virtual ExpertLease acquire(int64_t layer, std::span<const int32_t> ids) = 0;

  virtual ExpertReads reads() const { return {}; }

 protected:
  friend class ExpertLease;
  virtual Result<std::span<const LoadedExpert>> next() = 0;
  virtual void release() noexcept = 0;
};

// The right to read the experts of one acquire(), some at a time, until it is destroyed: a source
// need not have room for all of them at once. Must not outlive its source.
class ExpertLease {
 public:
  explicit ExpertLease(ExpertSource& source) : source_(&source) {}
  ExpertLease(ExpertLease&& other) noexcept : source_(std::exchange(other.source_, nullptr)) {}
  ExpertLease& operator=(ExpertLease&&) = delete;
  ~ExpertLease() {
    if (source_ != nullptr) source_->release();
  }

  // The next experts that are readable, in any order; blocks until there is one. Gives those of
  // the call before back. Empty when all have come. After an error nothing more comes.
  Result<std::span<const LoadedExpert>> next() { return source_->next(); }

 private:
  ExpertSource* source_;
};

// Experts that are always readable: those of a mapped checkpoint, read by the page fault. All come
// at once, in the order of their ids.
class MappedExpertSource : public ExpertSource {
 public:
  // Looks every expert of the config up in `weights`, which must outlive the result.
  static Result<MappedExpertSource> open(const ModelConfig& config, const WeightSource& weights);

  ExpertLease acquire(int64_t layer, std::span<const int32_t> ids) override;

 private:
  explicit MappedExpertSource(std::vector<std::vector<ExpertWeights>> layers);
  Result<std::span<const LoadedExpert>> next() override;
  void release() noexcept override;

  std::vector<std::vector<ExpertWeights>> layers_;  // [layer][expert]
  std::vector<LoadedExpert> loaded_;                // room for any layer's
  std::span<const LoadedExpert> left_;              // of the lease
  bool is_leased_ = false;
};

}  // namespace millrace
