#include "model/trace.h"

namespace millrace {
namespace {

template <class Tensor, class T>
void append_rows(Tensor& tensor, std::vector<int64_t> row_shape, Matrix<const T> rows) {
  if (tensor.shape.empty()) {
    tensor.shape = {0};
    tensor.shape.insert(tensor.shape.end(), row_shape.begin(), row_shape.end());
  }
  tensor.shape[0] += rows.shape[0];
  for (int64_t r = 0; r < rows.shape[0]; ++r) {
    tensor.values.insert(tensor.values.end(), rows.row(r), rows.row(r) + rows.shape[1]);
  }
}

}  // namespace

void Trace::add(const std::string& name, Matrix<const float> rows) {
  append_rows(tensors_[name], {rows.shape[1]}, rows);
}

void Trace::add(const std::string& name, Matrix<const float> rows, int64_t inner) {
  append_rows(tensors_[name], {inner, rows.shape[1] / inner}, rows);
}

void Trace::add(const std::string& name, Matrix<const int32_t> rows) {
  append_rows(ids_[name], {rows.shape[1]}, rows);
}

void Trace::add_selection(const std::string& name, int64_t num_rows,
                          std::vector<int32_t> selected) {
  Selection& selection = selections_[name];
  selection.num_rows = num_rows;
  selection.selected.push_back(std::move(selected));
}

}  // namespace millrace
