#pragma once

// Every operation of the forward pass, as one table of functions. `kernels/ref` defines each of
// them in plain loops; `kernels/cpu` computes the same bits fast. docs/numerics.md is the
// contract: which additions an operation makes and in which order.
//
// Conventions
//   * Activations are floats. In `reference` numerics their values are bf16 (or exactly
//     dequantised fp8/fp4) numbers; in `fp32` numerics they are anything. An operation that ends
//     in a rounding point takes a Rounding.
//   * T tokens, K inputs, N outputs, D hidden size or head dim, H heads, M hyper-connection
//     streams, C compressed rows, E experts.
//   * lane sum ("sum16"): element i is added to lane i mod 16, each lane in ascending order; then
//     lane l += lane l + 8, then l + 4, l + 2, l + 1.
//   * fma means one rounding. exp, sigmoid and softplus are those of kernels/math.h.
//   * Outputs never overlap inputs unless a line says "in place".
//
// Threading: an operation uses the threads of its context; one operation at a time per context.
// The calling thread works along: it must be in the contract's floating-point state, so every
// entry into the model holds a ScopedFpEnvironment. Pool threads set theirs.
// Shapes that do not fit are the caller's bug and stop the program.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sys/thread_pool.h"
#include "tensor/key_format.h"
#include "tensor/quantized.h"
#include "tensor/tensor_view.h"

namespace millrace {

enum class Rounding { kNone, kBf16 };

// What an operation may use besides its arguments: the threads, and scratch memory that belongs
// to one thread and lives until its next scratch() call. Grows to a steady size, then stays.
class KernelContext {
 public:
  explicit KernelContext(ThreadPool& pool);
  ThreadPool& pool() { return pool_; }

  // At least `bytes` bytes at a 64-byte boundary. Contents are undefined.
  void* scratch(int thread_idx, size_t bytes);
  template <class T>
  T* scratch(int thread_idx, int64_t count) {
    return static_cast<T*>(scratch(thread_idx, size_t(count) * sizeof(T)));
  }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  struct Buffer {
    std::unique_ptr<void, Free> data;
    size_t size = 0;
  };
  ThreadPool& pool_;
  std::vector<Buffer> buffers_;
};

// The window keys of one token, in logical order: some of its sequence's ring, then some of the
// call's own.
struct WindowKeys {
  const std::byte* state = nullptr;  // the sequence's memory, in which all its rings lie
  int64_t first_position = 0;        // of the keys in the ring; position p lies in slot p mod ring_slots
  int32_t num_in_ring = 0;
  int32_t fresh_begin = 0, num_fresh = 0;  // rows of AttentionKeys::fresh
};

// The keys each query of a call attends to: its window, then the rows of its sequence's pages
// listed in its row of `selected`, ascending.
struct AttentionKeys {
  KeyFormat window_format = KeyFormat::kF32;
  int64_t ring_offset = 0;                // of this layer's ring in WindowKeys::state
  int64_t ring_slots = 1;
  const std::byte* fresh = nullptr;       // keys of this call, one after the other
  std::span<const WindowKeys> window;     // [T]
  PagedRows compressed;
  std::span<const int32_t* const> block_tables;  // [T]
  Matrix<const int32_t> selected;         // [T, most]
  std::span<const int32_t> num_selected;  // [T]
};

// The keys that one query is scored against: rows of its sequence's pages.
struct IndexKeys {
  const int32_t* block_table = nullptr;
  int64_t count = 0;
  // Null: the first rows. Otherwise the rows of these groups, one after the other; the last group
  // may lack some.
  const int32_t* groups = nullptr;
  int64_t group_rows = 1;

  int64_t row(int64_t j) const {
    return groups == nullptr ? j : groups[j / group_rows] * group_rows + j % group_rows;
  }
};

// Which rows a product over several experts takes and writes. Groups partition the rows.
struct RowGroups {
  struct Group {
    Fp4Matrix w;          // [N, K], the same sizes in every group
    int64_t begin, end;   // of x_rows and out_rows
  };
  std::span<const Group> groups;
  std::span<const int32_t> x_rows;    // [R] the row of x that row r reads
  std::span<const int32_t> out_rows;  // [R] the row of out that it writes, all different
};

struct HcWeights {
  F32Matrix fn;                   // [(2 + M) * M, M * hidden_size]
  std::span<const float> scale;   // [3]
  std::span<const float> base;    // [(2 + M) * M]
};

struct HcParameters {
  float norm_eps;
  float hc_eps;
  int sinkhorn_iters;
};

struct KernelTable {
  std::string_view name;  // "ref", or the target: "AVX2", "SSE4", "EMU128", "NEON", ...

  // ---- Matrix products. One fp32 accumulator per output, k ascending.

  // out[t][n] = chain over k of fma(e4m3(w), x[t][k] * scale, acc); the block scale is applied to
  // x first, by one fp32 multiplication.
  void (*matmul_fp8)(KernelContext&, Matrix<const float> x /*[T, K]*/, const Fp8Matrix& w,
                     Matrix<float> out /*[T, N]*/, Rounding);

  // Each group of rows by its own weights: out[out_rows[r]] = w x[x_rows[r]]. Exact block sums:
  // S = sum over a block of 32 columns of (2 * e2m1) * (512 * e4m3), an integer below 2^27,
  // rounded once to fp32; acc += (S * 2^(x scale - 127 - 10)) * 2^(w scale - 127), blocks
  // ascending.
  void (*matmul_fp4)(KernelContext&, Fp8Rows x /*[., K]*/, const RowGroups& groups,
                     Matrix<float> out /*[., N]*/, Rounding);

  // The same for fp32 numerics: chain over k of fma(e2m1(w) * scale, x[t][k], acc).
  void (*matmul_fp4_f32)(KernelContext&, Matrix<const float> x, const RowGroups& groups,
                         Matrix<float> out, Rounding);

  // Chain over k of fma(w, x[t][k], acc).
  void (*matmul_bf16)(KernelContext&, Matrix<const float> x, const Bf16Matrix& w,
                      Matrix<float> out, Rounding);

  // ---- Quantisation of activations. A block with a NaN or an infinity
  // becomes NaN as a whole.

  // amax = max(max |x|, 1e-4); scale = 2^ceil(log2(amax * (1 / 448))); codes e4m3(x / scale).
  void (*quantize_fp8)(KernelContext&, Matrix<const float> x, MutableFp8Rows out);
  // The same, stored as e4m3 value * scale. In place.
  void (*fake_quantize_fp8)(KernelContext&, Matrix<float> x);
  // Blocks of 32: scale = 2^ceil(log2(max(max |x|, 6 * 2^-126) / 6)). In place.
  void (*fake_quantize_mxfp4)(KernelContext&, Matrix<float> x);

  // ---- Keys as they are stored (tensor/key_format.h).

  // Quantises rows and stores each at its address. mxfp8 and mxfp4 as above; nvfp4 in blocks of
  // 16: scale = e4m3(min(max(max |x|, 6 * 2^-9) / 6, 448)), codes e2m1(clamp(x / scale, -6, 6)).
  void (*pack_keys)(KernelContext&, Matrix<const float> x /*[T, D]*/, KeyFormat,
                    std::span<std::byte* const> rows /*[T]*/);
  // Their values: code * scale.
  void (*unpack_keys)(KernelContext&, KeyFormat, std::span<const std::byte* const> rows /*[T]*/,
                      Matrix<float> out /*[T, D]*/);

  // ---- Norms and rotation.

  // r = 1 / sqrt(sum16(x^2) / D + eps); out = (x * r) * weight. In place allowed.
  void (*rms_norm)(KernelContext&, Matrix<const float> x, std::span<const bf16> weight, float eps,
                   Matrix<float> out, Rounding);

  // Rotates the pairs (2i, 2i + 1) of the last 2 * cos.shape[1] values of every head by the
  // angles of its token: a' = fma(a, cos, -(b * sin)), b' = fma(a, sin, b * cos); `inverse`
  // negates sin. In place; only rotated values are rounded.
  void (*rope)(KernelContext&, TensorView<float, 3> x /*[T, H, D]*/, Matrix<const float> cos,
               Matrix<const float> sin /*[T, rope dim / 2]*/, bool inverse, Rounding);

  // ---- Hyper-connections. streams is [T, M * hidden_size], stream-major.

  // r = 1 / sqrt(sum16(f^2) / (M * hidden_size) + norm_eps); m[k] = sum16(fma f * fn[k]) * r; then
  // the scalar part, in math.h's functions and left-to-right sums: pre [T, M], post [T, M],
  // comb [T, M * M] with comb[i * M + j] = C[i][j].
  void (*hc_mixes)(KernelContext&, Matrix<const float> streams, const HcWeights&,
                   const HcParameters&, Matrix<float> pre, Matrix<float> post, Matrix<float> comb);
  // y = mix[0] * h[0], then fma(mix[i], h[i], y), i ascending.
  void (*hc_collapse)(KernelContext&, Matrix<const float> streams, Matrix<const float> mix,
                      Matrix<float> y, Rounding);
  // h'[j] = post[j] * y, then fma(C[i][j], h[i], .), i ascending. In place.
  void (*hc_expand)(KernelContext&, Matrix<const float> y, Matrix<const float> post,
                    Matrix<const float> comb, Matrix<float> streams, Rounding);
  // mean over the streams: (((h[0] + h[1]) + h[2]) + ...) / M.
  void (*hc_mean)(KernelContext&, Matrix<const float> streams, int num_streams,
                  Matrix<float> mean, Rounding);

  // ---- Attention.

  // s[j] = (chain over d of fma(q[d], key[j][d], s)) * scale; m = max(max s, -1e30);
  // e[j] = exp(s[j] - m); den = sum16(e) + exp(sink[h] - m); weight[j] = e[j] / den;
  // out[d] = chain over j of fma(weight[j], key[j][d], .).
  void (*attention)(KernelContext&, TensorView<const float, 3> q /*[T, H, D]*/,
                    const AttentionKeys& keys, std::span<const float> sink /*[H]*/, float scale,
                    TensorView<float, 3> out /*[T, H, D]*/, Rounding);

  // Softmax over the two tokens of a group, per channel: m = max(b0, b1), e = exp(b - m),
  // s = e0 + e1, out = fma(a1, e1 / s, a0 * (e0 / s)). Row j of `out` is made of rows 2 j and
  // 2 j + 1 of a and b.
  void (*compress_pairs)(KernelContext&, std::span<const float* const> a /*[2 n] rows of D*/,
                         std::span<const float* const> b /*[2 n] rows of D*/,
                         Matrix<float> out /*[n, D]*/, Rounding);

  // scores[t][j] for j < wanted[t].count: per head the dot product as blocks of 32, each a chain
  // of fma from zero, added in ascending order; then acc = fma(weights[t][h] * weight_scale,
  // max(dot, 0), acc), heads ascending. Key j is row wanted[t].row(j) of the token's pages.
  void (*index_scores)(KernelContext&, TensorView<const float, 3> q /*[T, H, D]*/,
                       Matrix<const float> weights /*[T, H]*/, float weight_scale,
                       const PagedRows& keys, std::span<const IndexKeys> wanted /*[T]*/,
                       std::span<float* const> scores /*[T] rows of wanted[t].count*/);

  // ---- Engram.

  // out[t] = the rows row_ids[t][c], dequantised, side by side.
  void (*gather_fp8)(KernelContext&, const Fp8Table& table,
                     Matrix<const int64_t> row_ids /*[T, columns]*/,
                     Matrix<float> out /*[T, columns * width]*/);
  // Per stream: dot = sum16 of fma(h * q_weight, k_weight * key), hh = sum16(h^2),
  // kk = sum16(key^2), d = ((dot * (1 / sqrt(hh / D + eps))) * (1 / sqrt(kk / D + eps))) / sqrt(D),
  // g = sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)), h = fma(g, value, h); untouched where dead[t].
  // key_value is [T, (M + 1) * D]: M keys, then the value. In place.
  void (*engram_update)(KernelContext&, Matrix<const float> key_value,
                        std::span<const bf16> q_weight /*[M * D]*/,
                        std::span<const bf16> k_weight /*[M * D]*/, float eps,
                        std::span<const uint8_t> dead /*[T]*/, Matrix<float> streams, Rounding);

  // ---- Mixture of experts.

  // score = sqrt(softplus(logit)); the k best of score + bias (ties: lower id) by ascending id;
  // weight = scaling * score / (left-to-right sum of the chosen + 1e-20), or scaling * score
  // without `normalize`. bias has one row of E values per token (rows may repeat).
  void (*route)(KernelContext&, Matrix<const float> logits /*[T, E]*/,
                std::span<const float* const> bias /*[T]*/, float scaling, bool normalize,
                Matrix<int32_t> experts /*[T, k]*/, Matrix<float> weights /*[T, k]*/);
  // g = min(gate, limit), u = clamp(up, -limit, limit), z = ((weight[t] * g) / (1 + exp(-g))) * u.
  void (*swiglu)(KernelContext&, Matrix<const float> gate, Matrix<const float> up,
                 std::span<const float> weight /*[T]*/, float limit, Matrix<float> z, Rounding);
  // out[t] = (expert_out[t][0] + expert_out[t][1] + ...) + shared[t], left to right; slots are in
  // ascending expert id.
  void (*combine_experts)(KernelContext&, TensorView<const float, 3> expert_out /*[T, k, D]*/,
                          Matrix<const float> shared /*[T, D]*/, Matrix<float> out, Rounding);
};

// The contract in plain loops.
const KernelTable& ref_kernels();

// The fast tables this program has and this machine can run, best first.
std::span<const KernelTable* const> fast_kernels();

// An instruction set that the fast kernels are written for.
struct KernelTarget {
  std::string_view name;      // as KernelTable::name
  bool is_compiled = false;   // into this program
  bool is_supported = false;  // by this processor; then its table is one of fast_kernels()
};

// All of them, best first.
std::span<const KernelTarget> kernel_targets();

// The table called `name` (see KernelTable::name, any case), or null. An empty name is the best.
const KernelTable* find_kernels(std::string_view name);

// A hash of what every operation of the table returns for one fixed micro-input. Two tables (of
// any machine, compiler or target) that answer alike have the same digest; a changed bit changes
// it. Takes a few milliseconds.
uint64_t numerics_digest(const KernelTable& table, KernelContext& ctx);

}  // namespace millrace
