#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/engram.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {
namespace {

void gather_fp8(KernelContext& ctx, const Fp8Table& table, Matrix<const int64_t> row_ids,
                Matrix<float> out) {
  const int64_t columns = row_ids.shape[1], blocks = table.width / kQuantBlock;
  Dims("gather_fp8").bind('T', row_ids.shape[0]).bind('T', out.shape[0])
      .bind('W', columns * table.width).bind('W', out.shape[1]);
  MR_CHECK_OP(table.width % kQuantBlock, ==, 0);
  const bool mutant = mutated("gather_fp8");
  each_item(ctx, out.shape[0] * columns, table.width, [&](int64_t item, int) HWY_ATTR {
    const FloatTag d;
    const WordTag du;
    const hn::Rebind<uint8_t, FloatTag> bytes;
    const int64_t t = item / columns, c = item % columns;
    const int64_t row = row_ids.row(t)[c];
    MR_CHECK(0 <= row && row < table.rows);
    for (int64_t i = 0; i < table.width; i += kLanes) {
      const uint8_t* codes = table.codes + row * table.width + i;
      const WordVector code = hn::PromoteTo(du, hn::LoadU(bytes, codes));
      const WordVector magnitude = hn::And(code, hn::Set(du, 0x7f));
      // A code below 8 has no leading one: it is read with one, which is then subtracted.
      const auto is_small = hn::Lt(magnitude, hn::Set(du, mutant ? 7 : 8));
      const WordVector normal = hn::Or(magnitude, hn::IfThenElseZero(is_small, hn::Set(du, 8)));
      const FloatVector with_one =
          hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(normal), hn::Set(du, 120u << 23)));
      const FloatVector one = hn::IfThenElseZero(hn::RebindMask(d, is_small), hn::Set(d, 0x1p-6f));
      const WordVector sign = hn::ShiftLeft<24>(hn::AndNot(hn::Set(du, 0x7f), code));
      const FloatVector value = hn::Or(hn::Sub(with_one, one), hn::BitCast(d, sign));
      const float scale = ue8m0_to_float(table.scales[row * blocks + i / kQuantBlock]);
      hn::StoreU(hn::Mul(value, hn::Set(d, scale)), d, out.row(t) + c * table.width + i);
    }
  });
}

void engram_update(KernelContext& ctx, Matrix<const float> key_value,
                   std::span<const bf16> q_weight, std::span<const bf16> k_weight, float eps,
                   std::span<const uint8_t> dead, Matrix<float> streams, Rounding rounding) {
  const int64_t size = key_value.shape[1] - streams.shape[1];
  const int64_t m = streams.shape[1] / size;
  Dims("engram_update").bind('T', key_value.shape[0]).bind('T', streams.shape[0])
      .bind('T', int64_t(dead.size())).bind('F', streams.shape[1]).bind('F', m * size)
      .bind('F', int64_t(q_weight.size())).bind('F', int64_t(k_weight.size()));
  const bool swapped = mutated("engram_update");
  each_item(ctx, streams.shape[0] * m, 6 * size, [&](int64_t item, int) HWY_ATTR {
    const int64_t t = item / m, stream = item % m;
    if (dead[size_t(t)]) return;
    float* h = streams.row(t) + stream * size;
    const float* key = key_value.row(t) + stream * size;
    const float* value = key_value.row(t) + m * size;
    const bf16* q = q_weight.data() + stream * size;
    const bf16* k = k_weight.data() + stream * size;
    LaneSum dot, hh, kk;
    each_sixteen(0, size, swapped, [&](auto access, int r, int64_t i) HWY_ATTR {
      const FloatVector x = access.load(h + i), y = access.load(key + i);
      dot.add(access, r, hn::Mul(x, access.load(q + i)), hn::Mul(access.load(k + i), y));
      hh.add(access, r, x, x);
      kk.add(access, r, y, y);
    });
    const float gate = engram_gate(dot.fold(), hh.fold(), kk.fold(), size, eps);
    each_vector(0, size, [&](auto access, int64_t d) HWY_ATTR {
      const FloatVector sum = fused_multiply_add(hn::Set(FloatTag(), gate), access.load(value + d),
                                                 access.load(h + d));
      access.store(rounded(sum, rounding), h + d);
    });
  });
}

}  // namespace

void add_engram(KernelTable& table) {
  table.gather_fp8 = gather_fp8;
  table.engram_update = engram_update;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
