#include <bit>
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/math.h"

namespace millrace {
namespace {

// FNV-1a over the bits of everything the operations return.
class Digest {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    for (const T& value : values) add_bytes(reinterpret_cast<const unsigned char*>(&value), sizeof(T));
  }
  void add(double value) { add(std::vector<double>{value}); }
  uint64_t value() const { return hash_; }

 private:
  void add_bytes(const unsigned char* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3ull;
  }
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

// A fixed sequence of values spread over several binades, so that additions round.
class Sequence {
 public:
  explicit Sequence(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  float number() {
    const uint64_t b = bits();
    const float mantissa = 1.0f + float(b & 0x7fffff) * 0x1p-23f;
    const float magnitude = std::ldexp(mantissa, int((b >> 23) % 8) - 6);
    return (b >> 63) ? -magnitude : magnitude;
  }
  std::vector<float> numbers(int64_t count) {
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = number();
    return v;
  }
  std::vector<bf16> bf16_numbers(int64_t count) {
    std::vector<bf16> v(static_cast<size_t>(count));
    for (bf16& x : v) x = to_bf16(number());
    return v;
  }
  std::vector<uint8_t> bytes(int64_t count) {
    std::vector<uint8_t> v(static_cast<size_t>(count));
    for (uint8_t& x : v) x = uint8_t(bits());
    return v;
  }
  std::vector<uint8_t> scales(int64_t count) {
    std::vector<uint8_t> v(static_cast<size_t>(count));
    for (uint8_t& x : v) x = uint8_t(120 + bits() % 8);
    return v;
  }

 private:
  uint64_t state_;
};

// Rows of keys, one after the other.
struct StoredKeys {
  KeyFormat format;
  int64_t row_bytes;
  std::vector<std::byte> bytes;

  StoredKeys(const KernelTable& table, KernelContext& ctx, KeyFormat format,
             Matrix<const float> values)
      : format(format),
        row_bytes(key_row_bytes(format, values.shape[1])),
        bytes(size_t(values.shape[0] * row_bytes)) {
    std::vector<std::byte*> rows;
    for (int64_t r = 0; r < values.shape[0]; ++r) rows.push_back(bytes.data() + r * row_bytes);
    table.pack_keys(ctx, values, format, rows);
  }

  std::vector<const std::byte*> rows() const {
    std::vector<const std::byte*> rows;
    for (size_t at = 0; at < bytes.size(); at += size_t(row_bytes)) rows.push_back(&bytes[at]);
    return rows;
  }
  PagedRows pages(int64_t rows_per_block) const {
    return {format, bytes.data(), rows_per_block * row_bytes, rows_per_block};
  }
};

void add_products(const KernelTable& table, KernelContext& ctx, Digest& digest) {
  constexpr int64_t kRows = 5, kK = 1280, kN = 43;
  Sequence in(1);
  std::vector<float> x = in.numbers(kRows * kK), out(kRows * kN);
  const Matrix<float> x_view(x.data(), {kRows, kK}), out_view(out.data(), {kRows, kN});

  const std::vector<uint8_t> fp8 = in.bytes(kN * kK), fp8_scales = in.scales(2 * kK / 32);
  table.matmul_fp8(ctx, x_view, {fp8.data(), fp8_scales.data(), kN, kK}, out_view, Rounding::kNone);
  digest.add(out);

  const std::vector<uint8_t> fp4 = in.bytes(kN * kK / 2), fp4_scales = in.scales(kN * kK / 32);
  const RowGroups::Group fp4_group{{fp4.data(), fp4_scales.data(), kN, kK}, 0, kRows};
  const std::vector<int32_t> x_rows{4, 0, 3, 2, 1}, out_rows{1, 3, 0, 2, 4};
  const RowGroups groups{{&fp4_group, 1}, x_rows, out_rows};
  table.matmul_fp4_f32(ctx, x_view, groups, out_view, Rounding::kNone);
  digest.add(out);

  std::vector<uint8_t> codes(kRows * kK), code_scales(kRows * kK / 32);
  const MutableFp8Rows rows{{codes.data(), {kRows, kK}}, {code_scales.data(), {kRows, kK / 32}}};
  table.quantize_fp8(ctx, x_view, rows);
  digest.add(codes);
  digest.add(code_scales);
  table.matmul_fp4(ctx, rows, groups, out_view, Rounding::kNone);
  digest.add(out);

  const std::vector<bf16> weights = in.bf16_numbers(kN * kK);
  table.matmul_bf16(ctx, x_view, {weights.data(), kN, kK}, out_view, Rounding::kBf16);
  digest.add(out);

  for (auto quantize : {table.fake_quantize_fp8, table.fake_quantize_mxfp4}) {
    std::vector<float> y = x;
    quantize(ctx, {y.data(), {kRows, kK}});
    digest.add(y);
  }
  for (KeyFormat format : {KeyFormat::kMxfp8, KeyFormat::kNvfp4, KeyFormat::kMxfp4}) {
    const StoredKeys keys(table, ctx, format, x_view);
    digest.add(keys.bytes);
    std::vector<float> y(x.size());
    table.unpack_keys(ctx, format, keys.rows(), {y.data(), {kRows, kK}});
    digest.add(y);
  }
}

void add_norms(const KernelTable& table, KernelContext& ctx, Digest& digest) {
  constexpr int64_t kRows = 3, kSize = 328, kStreams = 4, kWide = kStreams * kSize;
  Sequence in(2);
  std::vector<float> streams = in.numbers(kRows * kWide), y(kRows * kSize);
  const Matrix<float> streams_view(streams.data(), {kRows, kWide}), y_view(y.data(), {kRows, kSize});

  const std::vector<float> fn = in.numbers(24 * kWide), scale = in.numbers(3), base = in.numbers(24);
  std::vector<float> pre(kRows * 4), post(kRows * 4), comb(kRows * 16);
  const Matrix<float> pre_view(pre.data(), {kRows, 4}), post_view(post.data(), {kRows, 4}),
      comb_view(comb.data(), {kRows, 16});
  table.hc_mixes(ctx, streams_view, {{fn.data(), 24, kWide}, scale, base}, {1e-20f, 1e-6f, 20},
                 pre_view, post_view, comb_view);
  digest.add(pre);
  digest.add(post);
  digest.add(comb);
  table.hc_collapse(ctx, streams_view, pre_view, y_view, Rounding::kNone);
  digest.add(y);
  const std::vector<bf16> norm = in.bf16_numbers(kSize);
  table.rms_norm(ctx, y_view, norm, 1e-20f, y_view, Rounding::kNone);
  digest.add(y);
  table.hc_expand(ctx, y_view, post_view, comb_view, streams_view, Rounding::kNone);
  digest.add(streams);
  table.hc_mean(ctx, streams_view, kStreams, y_view, Rounding::kBf16);
  digest.add(y);

  const std::vector<float> key_value = in.numbers(kRows * (kWide + kSize));
  const std::vector<bf16> q_weight = in.bf16_numbers(kWide), k_weight = in.bf16_numbers(kWide);
  const std::vector<uint8_t> dead{0, 1, 0};
  table.engram_update(ctx, {key_value.data(), {kRows, kWide + kSize}}, q_weight, k_weight, 1e-20f,
                      dead, streams_view, Rounding::kNone);
  digest.add(streams);

  const std::vector<uint8_t> codes = in.bytes(10 * 64), scales = in.scales(10 * 2);
  const std::vector<int64_t> row_ids{3, 9, 0, 1, 1, 8};
  std::vector<float> gathered(kRows * 2 * 64);
  table.gather_fp8(ctx, {codes.data(), scales.data(), 10, 64}, {row_ids.data(), {kRows, 2}},
                   {gathered.data(), {kRows, 2 * 64}});
  digest.add(gathered);
}

void add_attention(const KernelTable& table, KernelContext& ctx, Digest& digest) {
  constexpr int64_t kRows = 3, kHeads = 5, kSize = 96, kWindow = 21, kCompressed = 40;
  Sequence in(3);
  std::vector<float> q = in.numbers(kRows * kHeads * kSize), out(q.size());
  const TensorView<float, 3> q_view(q.data(), {kRows, kHeads, kSize}), out_view(out.data(), {kRows, kHeads, kSize});
  std::vector<float> cos(kRows * 16), sin(kRows * 16), frequencies(16);
  const YarnParameters yarn{16, 32, 1, 1024};
  rope_frequencies(40000, &yarn, frequencies);
  const std::vector<int64_t> positions{0, 777, 1048575};
  const Matrix<float> cos_view(cos.data(), {kRows, 16}), sin_view(sin.data(), {kRows, 16});
  rope_table(positions, frequencies, cos_view, sin_view);
  for (bool inverse : {false, true}) {
    table.rope(ctx, q_view, cos_view, sin_view, inverse, Rounding::kNone);
    digest.add(q);
  }

  const std::vector<float> window = in.numbers(kWindow * kSize), compressed = in.numbers(kCompressed * kSize);
  const StoredKeys ring(table, ctx, KeyFormat::kMxfp8, {window.data(), {kWindow, kSize}});
  const StoredKeys pages(table, ctx, KeyFormat::kNvfp4, {compressed.data(), {kCompressed, kSize}});
  const std::byte* state = ring.bytes.data();
  const std::vector<WindowKeys> window_keys{{state, 0, 0, 4, 1}, {state, 19, 9, 2, 3}, {state, 40, 10, 0, 0}};
  const std::vector<int32_t> block_table{3, 1, 4, 0, 2};  // 8 rows each
  const std::vector<const int32_t*> block_tables(kRows, block_table.data());
  const std::vector<int32_t> selected{0, 0, 0, 0, 0, 0, 0, 2, 3, 5, 7, 11, 13, 0, 17, 19, 23, 29, 31, 37, 38};
  const std::vector<int32_t> num_selected{0, 6, 7};
  const std::vector<float> sink = in.numbers(kHeads);
  table.attention(ctx, q_view,
                  {.window_format = ring.format,
                   .ring_slots = kWindow - 5,
                   .fresh = state + (kWindow - 5) * ring.row_bytes,
                   .window = window_keys,
                   .compressed = pages.pages(8),
                   .block_tables = block_tables,
                   .selected = {selected.data(), {kRows, 7}},
                   .num_selected = num_selected},
                  sink, 0.05f, out_view, Rounding::kNone);
  digest.add(out);

  const std::vector<float> a = in.numbers(4 * kSize), b = in.numbers(4 * kSize);
  std::vector<const float*> a_rows, b_rows;
  for (int64_t r : {3, 0, 1, 2}) {
    a_rows.push_back(&a[size_t(r * kSize)]);
    b_rows.push_back(&b[size_t(r * kSize)]);
  }
  std::vector<float> latent(2 * kSize);
  table.compress_pairs(ctx, a_rows, b_rows, {latent.data(), {2, kSize}}, Rounding::kNone);
  digest.add(latent);

  const StoredKeys index_keys(table, ctx, KeyFormat::kMxfp4, {compressed.data(), {kCompressed, kSize}});
  const std::vector<float> head_weights = in.numbers(kRows * kHeads);
  const std::vector<IndexKeys> wanted{
      {block_tables[0], 0}, {block_tables[1], 17}, {block_tables[2], kCompressed}};
  std::vector<float> scores(17 + kCompressed);
  const std::vector<float*> score_rows{nullptr, scores.data(), scores.data() + 17};
  table.index_scores(ctx, q_view, {head_weights.data(), {kRows, kHeads}}, 0.125f,
                     index_keys.pages(8), wanted, score_rows);
  digest.add(scores);
}

void add_experts(const KernelTable& table, KernelContext& ctx, Digest& digest) {
  constexpr int64_t kRows = 3, kExperts = 37, kChosen = 6, kSize = 200;
  Sequence in(4);
  const std::vector<float> logits = in.numbers(kRows * kExperts), bias = in.numbers(kExperts);
  const std::vector<const float*> biases(kRows, bias.data());
  std::vector<int32_t> experts(kRows * kChosen);
  std::vector<float> weights(kRows * kChosen);
  table.route(ctx, {logits.data(), {kRows, kExperts}}, biases, 1.5f, true,
              {experts.data(), {kRows, kChosen}}, {weights.data(), {kRows, kChosen}});
  digest.add(experts);
  digest.add(weights);

  const std::vector<float> gate = in.numbers(kRows * kSize), up = in.numbers(kRows * kSize);
  std::vector<float> z(kRows * kSize);
  table.swiglu(ctx, {gate.data(), {kRows, kSize}}, {up.data(), {kRows, kSize}},
               std::span(weights).first(kRows), 10.0f, {z.data(), {kRows, kSize}}, Rounding::kNone);
  digest.add(z);
  const std::vector<float> expert_out = in.numbers(kRows * kChosen * kSize);
  table.combine_experts(ctx, {expert_out.data(), {kRows, kChosen, kSize}}, {up.data(), {kRows, kSize}},
                        {z.data(), {kRows, kSize}}, Rounding::kNone);
  digest.add(z);
}

void add_scalars(Digest& digest) {
  Sequence in(5);
  for (int i = 0; i < 64; ++i) {
    const double x = double(in.number());
    double s, c;
    sincos_f64(x * 1e4, s, c);
    digest.add(s);
    digest.add(c);
    digest.add(exp_f64(x));
    digest.add(log_f64(std::fabs(x)));
    digest.add(double(softplus_f32(float(x))));
  }
}

}  // namespace

uint64_t numerics_digest(const KernelTable& table, KernelContext& ctx) {
  Digest digest;
  add_products(table, ctx, digest);
  add_norms(table, ctx, digest);
  add_attention(table, ctx, digest);
  add_experts(table, ctx, digest);
  add_scalars(digest);
  return digest.value();
}

}  // namespace millrace
