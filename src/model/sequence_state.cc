#include "model/sequence_state.h"

#include <algorithm>

namespace millrace {

Matrix<float> WindowRows::append(int64_t count) {
  if ((num_rows_ + count) * width_ > int64_t(data_.size())) {
    const int64_t kept = std::min(keep_, num_rows_);
    std::copy_n(data_.begin() + (num_rows_ - kept) * width_, kept * width_, data_.begin());
    num_rows_ = kept;
    const int64_t capacity = std::max(2 * keep_, kept + count);
    if (capacity * width_ > int64_t(data_.size())) data_.resize(size_t(capacity * width_));
  }
  float* first = data_.data() + num_rows_ * width_;
  num_rows_ += count;
  end_position_ += count;
  return {first, {count, width_}};
}

void WindowRows::skip(int64_t count) {
  if (count == 0) return;
  num_rows_ = 0;
  end_position_ += count;
}

SequenceState::SequenceState(const ModelConfig& config)
    : window(size_t(config.num_hidden_layers),
             WindowRows(config.sliding_window - 1, config.head_dim)),
      compressed(config.kv_source_layer_ids.size()),
      draft_window(size_t(config.num_nextn_predict_layers),
                   WindowRows(config.sliding_window, config.head_dim)) {}

int64_t SequenceState::bytes() const {
  int64_t floats = 0;
  for (const std::vector<WindowRows>* rings : {&window, &draft_window}) {
    for (const WindowRows& ring : *rings) floats += ring.rows().size();
  }
  for (const CompressedRows& rows : compressed) {
    floats += int64_t(rows.kv.size() + rows.index_keys.size() + rows.open_value.size() +
                      rows.open_gate.size());
  }
  return floats * int64_t(sizeof(float)) + int64_t(ngram_tail.size() * sizeof(int32_t));
}

}  // namespace millrace
