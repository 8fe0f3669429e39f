#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor/tensor_view.h"

namespace millrace {

// A record of what a forward pass computed, by name, for comparison with other implementations.
// Calls for consecutive chunks of one sequence append rows, so chunking leaves no mark.
class Trace {
 public:
  struct Tensor {
    std::vector<int64_t> shape;  // first dimension: rows so far
    std::vector<float> values;
  };
  struct IdTensor {
    std::vector<int64_t> shape;
    std::vector<int32_t> values;
  };
  struct Selection {
    int64_t num_rows = 0;                        // compressed rows that exist
    std::vector<std::vector<int32_t>> selected;  // per token, ascending
  };

  void add(const std::string& name, Matrix<const float> rows);
  // Rows of `rows` seen as [inner, rest]: streams are kept as [T, M, hidden_size].
  void add(const std::string& name, Matrix<const float> rows, int64_t inner);
  void add(const std::string& name, Matrix<const int32_t> rows);
  void add_selection(const std::string& name, int64_t num_rows, std::vector<int32_t> selected);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, IdTensor>& ids() const { return ids_; }
  const std::map<std::string, Selection>& selections() const { return selections_; }

 private:
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, IdTensor> ids_;
  std::map<std::string, Selection> selections_;
};

}  // namespace millrace
