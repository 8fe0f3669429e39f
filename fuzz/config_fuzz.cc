// config.json. Whatever is accepted can be used: its lists and totals are finite, small enough to
// build, and completing it again changes nothing.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model_config/cost.h"
#include "model_config/engram_constants.h"
#include "model_config/layer_map.h"
#include "model_config/model_config.h"
#include "model_config/tensor_list.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<ModelConfig> parsed =
      parse_model_config({reinterpret_cast<const char*>(data), size});
  if (!parsed.has_value()) {
    MR_CHECK(!parsed.error().message.empty());
    return 0;
  }
  const ModelConfig& config = parsed.value();
  ModelConfig again = config;
  MR_CHECK(complete(again).ok());
  MR_CHECK(again.compress_ratios == config.compress_ratios);
  MR_CHECK(again.engram_num_embeddings == config.engram_num_embeddings);

  MR_CHECK_OP(layer_map(config).size(), ==, size_t(config.num_hidden_layers));
  MR_CHECK_OP(engram_tables(config).size(), ==, config.engram_layer_ids.size());
  const std::vector<TensorSpec> tensors = tensor_list(config);
  MR_CHECK_OP(tensors.size(), <, 1'000'000);
  const CheckpointSize total = checkpoint_size(tensors);
  MR_CHECK_OP(total.total.bytes, >, 0);
  MR_CHECK_OP(total.total.bytes, <, int64_t{1} << 62);
  MR_CHECK(kv_size(config).bytes_per_sequence() >= 0);
  return 0;
}
