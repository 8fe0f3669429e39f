#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/check.h"

namespace millrace {

// A non-owning, row-major window on memory somebody else keeps alive. Innermost stride is 1;
// strides count elements. Passed by value; never stored beyond a step.
template <class T, int Rank>
struct TensorView {
  T* data = nullptr;
  std::array<int64_t, Rank> shape{};
  std::array<int64_t, Rank> stride{};

  TensorView() = default;
  TensorView(T* data, std::array<int64_t, Rank> shape) : data(data), shape(shape) {
    int64_t step = 1;
    for (int d = Rank - 1; d >= 0; --d) {
      stride[size_t(d)] = step;
      step *= shape[size_t(d)];
    }
  }
  TensorView(T* data, std::array<int64_t, Rank> shape, std::array<int64_t, Rank> stride)
      : data(data), shape(shape), stride(stride) {}

  // The vector at the given leading indices: row(r) of a matrix, row(t, h) of a rank-3 tensor.
  template <class... Index>
  T* row(Index... index) const
    requires(sizeof...(Index) == Rank - 1)
  {
    const std::array<int64_t, Rank - 1> at{int64_t(index)...};
    int64_t offset = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      MR_DCHECK(0 <= at[d] && at[d] < shape[d]);
      offset += at[d] * stride[d];
    }
    return data + offset;
  }

  // Rows [begin, end) along the first dimension.
  TensorView rows(int64_t begin, int64_t end) const {
    MR_DCHECK(0 <= begin && begin <= end && end <= shape[0]);
    TensorView part = *this;
    part.data += begin * stride[0];
    part.shape[0] = end - begin;
    return part;
  }

  int64_t size() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }

  operator TensorView<const T, Rank>() const
    requires(!std::is_const_v<T>)
  {
    return {data, shape, stride};
  }
};

template <class T>
using Matrix = TensorView<T, 2>;

}  // namespace millrace
