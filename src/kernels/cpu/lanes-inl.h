// How the kernels walk over arrays of any length, and the lane sums and functions they share.
// Once per target; included inside foreach_target.

#if defined(MILLRACE_KERNELS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLRACE_KERNELS_CPU_LANES_INL_H_
#undef MILLRACE_KERNELS_CPU_LANES_INL_H_
#else
#define MILLRACE_KERNELS_CPU_LANES_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/vectors-inl.h"
#include "kernels/kernels.h"
#include "kernels/math.h"
#include "kernels/mutation.h"
#include "kernels/scalar.h"
#include "tensor/dims.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {

// ---- Walking. A kernel's step is written once, for an Access: `Whole` is one full vector, `Part`
// the first `count` lanes of one, 0 <= count <= kLanes. A Part reads zeros beyond its end.

struct Whole {
  static constexpr int64_t count = kLanes;

  HWY_INLINE FloatVector load(const float* p) const { return hn::LoadU(FloatTag(), p); }
  HWY_INLINE FloatVector load(const bf16* p) const {
    const hn::Rebind<uint16_t, FloatTag> half;
    const WordTag d;
    const auto bits = hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const uint16_t*>(p)));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits));
  }
  HWY_INLINE void store(FloatVector v, float* p) const { hn::StoreU(v, FloatTag(), p); }
  // Pairs (a, b) side by side in memory.
  HWY_INLINE void load_pairs(const float* p, FloatVector& a, FloatVector& b) const {
    hn::LoadInterleaved2(FloatTag(), p, a, b);
  }
  HWY_INLINE void store_pairs(FloatVector a, FloatVector b, float* p) const {
    hn::StoreInterleaved2(a, b, FloatTag(), p);
  }
  // The lanes that take part, new; the others, old.
  HWY_INLINE FloatVector keep(FloatVector updated, FloatVector /*old*/) const { return updated; }
};

struct Part {
  int64_t count;

  HWY_INLINE FloatVector load(const float* p) const {
    HWY_ALIGN float lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
    return hn::Load(FloatTag(), lanes);
  }
  HWY_INLINE FloatVector load(const bf16* p) const {
    HWY_ALIGN uint32_t lanes[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) lanes[i] = uint32_t(p[i].bits) << 16;
    return hn::BitCast(FloatTag(), hn::Load(WordTag(), lanes));
  }
  HWY_INLINE void store(FloatVector v, float* p) const {
    HWY_ALIGN float lanes[kLanes];
    hn::Store(v, FloatTag(), lanes);
    for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
  }
  HWY_INLINE void load_pairs(const float* p, FloatVector& a, FloatVector& b) const {
    HWY_ALIGN float even[kLanes] = {};
    HWY_ALIGN float odd[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) even[i] = p[2 * i], odd[i] = p[2 * i + 1];
    a = hn::Load(FloatTag(), even);
    b = hn::Load(FloatTag(), odd);
  }
  HWY_INLINE void store_pairs(FloatVector a, FloatVector b, float* p) const {
    HWY_ALIGN float even[kLanes];
    HWY_ALIGN float odd[kLanes];
    hn::Store(a, FloatTag(), even);
    hn::Store(b, FloatTag(), odd);
    for (int64_t i = 0; i < count; ++i) p[2 * i] = even[i], p[2 * i + 1] = odd[i];
  }
  HWY_INLINE FloatVector keep(FloatVector updated, FloatVector old) const {
    return hn::IfThenElse(hn::FirstN(FloatTag(), size_t(count)), updated, old);
  }
};

// As many of `left` elements as fit into one vector.
HWY_INLINE Part part_of(int64_t left) { return {left < 0 ? 0 : left < kLanes ? left : kLanes}; }

// step(access, i) for the vectors that start at i = begin, begin + kLanes, ...; the last may be a
// Part.
template <class Step>
HWY_INLINE void each_vector(int64_t begin, int64_t end, const Step& step) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) step(Whole(), i);
  if (i < end) step(part_of(end - i), i);
}

// The place of step i of `count` in an order in which steps 1 and 2 are swapped if `swapped`: what
// a mutation does to a chain of additions.
HWY_INLINE int64_t nth(int64_t i, int64_t count, bool swapped) {
  return swapped && count >= 3 && (i == 1 || i == 2) ? 3 - i : i;
}

// ---- Lane sums: 16 virtual lanes in kSumVectors registers, element i in lane i mod 16.

constexpr int kSumVectors = 16 / kLanes;

struct LaneSum {
  FloatVector part[kSumVectors];

  HWY_INLINE LaneSum() {
    for (FloatVector& v : part) v = hn::Zero(FloatTag());
  }
  // += x * y in register r.
  template <class Access>
  HWY_INLINE void add(const Access& access, int r, FloatVector x, FloatVector y) {
    part[r] = access.keep(fused_multiply_add(x, y, part[r]), part[r]);
  }
  HWY_INLINE void load(const float* lanes) {
    for (int r = 0; r < kSumVectors; ++r) part[r] = hn::LoadU(FloatTag(), lanes + r * kLanes);
  }
  HWY_INLINE void store(float* lanes) const {
    for (int r = 0; r < kSumVectors; ++r) hn::StoreU(part[r], FloatTag(), lanes + r * kLanes);
  }
  HWY_INLINE float fold() const {
    HWY_ALIGN float lanes[16];
    store(lanes);
    return fold_lanes(lanes);
  }
};

// step(access, r, i): element i on belongs to register r, ascending in every lane. `begin` is a
// multiple of 16.
template <class Step>
HWY_INLINE void each_sixteen(int64_t begin, int64_t end, bool swapped, const Step& step) {
  const int64_t blocks = (end - begin) / 16;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t i = begin + 16 * nth(b, blocks, swapped);
    for (int r = 0; r < kSumVectors; ++r) step(Whole(), r, i + r * kLanes);
  }
  const int64_t i = begin + 16 * blocks;
  if (i == end) return;
  for (int r = 0; r < kSumVectors; ++r) step(part_of(end - i - r * kLanes), r, i + r * kLanes);
}

// ---- Functions on every lane.

// Rounds where asked.
HWY_INLINE FloatVector rounded(FloatVector x, Rounding rounding) {
  return rounding == Rounding::kBf16 ? round_to_bf16(x) : x;
}

// math.h's exp_f32, operation by operation.
HWY_INLINE FloatVector exp_lanes(FloatVector x) {
  const FloatTag d;
  const IntTag di;
  const FloatVector magic = hn::Set(d, kExpMagic);
  const FloatVector t = fused_multiply_add(x, hn::Set(d, kExpLog2e), magic);
  const FloatVector minus_n = hn::Neg(hn::Sub(t, magic));
  const FloatVector r =
      fused_multiply_add(minus_n, hn::Set(d, kExpLn2Lo),
                         fused_multiply_add(minus_n, hn::Set(d, kExpLn2Hi), x));
  FloatVector p = hn::Set(d, kExpPoly[0]);
  for (int i = 1; i < 7; ++i) p = fused_multiply_add(p, r, hn::Set(d, kExpPoly[i]));
  const IntVector exponent = hn::Sub(hn::BitCast(di, t), hn::BitCast(di, magic));
  const IntVector half = hn::ShiftRight<1>(exponent);
  const auto power_of_two = [&](IntVector n) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  };
  // Where x is NaN, so is p; where x is out of range, p is meaningless and replaced.
  const FloatVector y =
      hn::Mul(hn::Mul(p, power_of_two(half)), power_of_two(hn::Sub(exponent, half)));
  const FloatVector infinity = hn::BitCast(d, hn::Set(di, 0x7f800000));
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, kExpMax)), infinity,
                        hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpMin)), y));
}

// ---- Splitting work over threads. The split never changes bits: it is between output elements.

// Touched elements below which waking other threads costs more than it saves. One thread touches
// about 12,000 in a microsecond; a region costs 1-2 us, and more where the processors are shared.
constexpr int64_t kWorthSplitting = 65536;
// The same for multiply-adds of a matrix product.
constexpr int64_t kProductsWorthSplitting = 65536;

// f(i, thread_idx) for each of `count` items; `cost` elements are touched per item.
template <class F>
HWY_INLINE void each_item(KernelContext& ctx, int64_t count, int64_t cost, const F& f) {
  if (count == 0) return;
  const int64_t grain = count * cost < kWorthSplitting ? count : 1;
  ctx.pool().parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread_idx) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) f(i, thread_idx);
  });
}

// f(row, begin, end): columns [begin, end) of a row, begin a multiple of 64, all of them together
// rows * columns; `cost` elements are touched per column.
template <class F>
HWY_INLINE void each_piece(KernelContext& ctx, int64_t rows, int64_t columns, int64_t cost,
                           const F& f) {
  constexpr int64_t kUnit = 64;
  const int64_t units = (columns + kUnit - 1) / kUnit;  // per row
  const int64_t count = rows * units;
  if (count == 0) return;
  const int64_t grain = rows * columns * cost < kWorthSplitting ? count : 1;
  ctx.pool().parallel_for(count, grain, [&](int64_t begin, int64_t end, int) HWY_ATTR {
    while (begin < end) {
      const int64_t row = begin / units, first = begin % units;
      const int64_t last = first + (end - begin) < units ? first + (end - begin) : units;
      f(row, first * kUnit, last * kUnit < columns ? last * kUnit : columns);
      begin += last - first;
    }
  });
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
