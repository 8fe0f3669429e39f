// Batches in which rows of several sequences, of several experts and of nobody stand side by side:
// every row gets, bit for bit, what the reference gives the row or the sequence that is alone. On
// every instruction set that this machine runs and on 1, 2 and 4 threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "kernels/contract_test.h"

namespace millrace {
namespace {

class Batches : public testing::Test {
 protected:
  using Call = std::function<Floats(const KernelTable&, KernelContext&)>;

  void expect_everywhere(const std::string& what, const Floats& want, const Call& call) {
    for (const KernelTable* table : fast_kernels()) {
      for (KernelContext* context : {&one_, &two_, &four_}) {
        const Floats got = call(*table, *context);
        ASSERT_EQ(got.size(), want.size());
        ASSERT_TRUE(same_bits(got, want))
            << table->name << ", " << what << ", " << context->pool().num_threads() << " threads";
      }
    }
  }
  KernelContext& ref() { return one_; }

  ThreadPool pool_1_{1}, pool_2_{2}, pool_4_{4};
  KernelContext one_{pool_1_}, two_{pool_2_}, four_{pool_4_};
};

// ---- Products over experts.

// What the router makes of a step: experts with no rows, one, a few, and more than are prepared at
// a time. Rows of x come in any order, several times, and every third one not at all: padding.
struct Routing {
  static constexpr int64_t kTokens = 24;
  std::vector<Fp4Weights> weights;
  std::vector<RowGroups::Group> groups;
  std::vector<int32_t> x_rows, out_rows;

  Routing(int64_t n, int64_t k) {
    const int64_t sizes[] = {0, 1, 2, 0, 7, 70, 1, 3, 0};
    for (uint64_t g = 0; g < std::size(sizes); ++g) weights.emplace_back(n, k, Random(g + 31));
    for (size_t g = 0; g < std::size(sizes); ++g) {
      const int64_t begin = int64_t(x_rows.size());
      groups.push_back({weights[g].matrix, begin, begin + sizes[g]});
      for (int64_t r = 0; r < sizes[g]; ++r) {
        x_rows.push_back(int32_t((r * 5 + int64_t(g)) % (kTokens / 3) * 3));
      }
    }
    const int64_t rows = num_rows();
    for (int64_t r = 0; r < rows; ++r) out_rows.push_back(int32_t(r * 31 % rows));  // 31: prime to 84
  }
  int64_t num_rows() const { return int64_t(x_rows.size()); }
  RowGroups row_groups() const { return {groups, x_rows, out_rows}; }

  // What `multiply` gives each row that is alone with its expert.
  template <class Multiply>
  Floats each_alone(int64_t n, const Multiply& multiply) const {
    Floats all(size_t(num_rows() * n));
    for (const RowGroups::Group& group : groups) {
      for (int64_t r = group.begin; r < group.end; ++r) {
        multiply(x_rows[size_t(r)], OneGroup(group.w, 1),
                 Matrix<float>{&all[size_t(out_rows[size_t(r)] * n)], {1, n}});
      }
    }
    return all;
  }
};

TEST_F(Batches, RaggedMatmulFp4GivesEachRowWhatItGetsAlone) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 64}, {67, 1280}, {33, 5120}}) {
    const Routing routing(n, k);
    Fp8Activations x = Fp8Activations::quantised(Routing::kTokens, k, Random(32));
    for (int64_t t = 0; t < Routing::kTokens; ++t) {
      if (t % 3 != 0) std::fill_n(x.codes.begin() + t * k, k, uint8_t(0x7f));
    }
    const Floats want =
        routing.each_alone(n, [&](int32_t row, const OneGroup& group, Matrix<float> out) {
          const Fp8Rows all = x.rows(Routing::kTokens);
          ref_kernels().matmul_fp4(ref(), {all.codes.rows(row, row + 1), all.scales.rows(row, row + 1)},
                                   group, out, Rounding::kNone);
        });
    expect_everywhere(text(n, k), want, [&](const KernelTable& table, KernelContext& ctx) {
      Floats got(want.size());
      table.matmul_fp4(ctx, x.rows(Routing::kTokens), routing.row_groups(),
                       view(got, routing.num_rows()), Rounding::kNone);
      return got;
    });
  }
}

TEST_F(Batches, RaggedMatmulFp4F32GivesEachRowWhatItGetsAlone) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 64}, {67, 1280}, {33, 5120}}) {
    const Routing routing(n, k);
    Floats x = Random(33).numbers(Routing::kTokens * k, Data::kBinades);
    for (int64_t t = 0; t < Routing::kTokens; ++t) {
      if (t % 3 != 0) std::fill_n(x.begin() + t * k, k, NAN);
    }
    const Matrix<const float> rows = view(std::as_const(x), Routing::kTokens);
    const Floats want =
        routing.each_alone(n, [&](int32_t row, const OneGroup& group, Matrix<float> out) {
          ref_kernels().matmul_fp4_f32(ref(), rows.rows(row, row + 1), group, out, Rounding::kNone);
        });
    expect_everywhere(text(n, k), want, [&](const KernelTable& table, KernelContext& ctx) {
      Floats got(want.size());
      table.matmul_fp4_f32(ctx, rows, routing.row_groups(), view(got, routing.num_rows()),
                           Rounding::kNone);
      return got;
    });
  }
}

// ---- Attention.

constexpr int64_t kRowsPerBlock = 4;

// One sequence in a step: `tokens` of them (0: one row of padding) after `first_position` others.
struct Member {
  int64_t tokens, first_position, num_selected;
};

constexpr int64_t kWindow = 128;

// Rows of a step for attention: each sequence has a ring, blocks and fresh keys of its own.
class AttentionBatch {
 public:
  AttentionBatch(int64_t heads, int64_t size, const std::vector<Member>& members, bool packed)
      : heads_(heads),
        size_(size),
        window_format_(packed ? KeyFormat::kMxfp8 : KeyFormat::kF32),
        blocks_(Random(41).numbers(kBlocks * kRowsPerBlock * size, Data::kBinades),
                kBlocks * kRowsPerBlock, packed ? KeyFormat::kNvfp4 : KeyFormat::kF32),
        sink_(Random(42).numbers(heads, Data::kBinades)) {
    Random random(43);
    int32_t next_block = kBlocks - 1;
    for (const Member& member : members) {
      Sequence& s = sequences_.emplace_back(Sequence{
          .q = random.numbers(rows_of(member) * heads * size, Data::kBinades),
          .ring = StoredKeys(random.numbers(kWindow * size, Data::kBinades), kWindow, window_format_),
          .fresh = StoredKeys(random.numbers(rows_of(member) * size, Data::kBinades),
                              rows_of(member), window_format_),
          .block_table = {},
          .selected = {},
          .member = member});
      // Blocks of the sequences lie backwards.
      while (int64_t(s.block_table.size()) * kRowsPerBlock < 2 * member.num_selected + 8) {
        s.block_table.push_back(next_block--);
      }
      for (int64_t t = 0; t < member.tokens; ++t) {
        std::vector<int32_t>& selected = s.selected.emplace_back();
        int32_t row = int32_t(random.below(4));
        // Not the same number for every token.
        for (int64_t i = 0; i < std::max<int64_t>(member.num_selected - t, 0); ++i) {
          selected.push_back(row);
          row += 1 + int32_t(random.below(2));
        }
      }
    }
    MR_CHECK(next_block >= 0);
  }

  // The rows of sequences [begin, end) in one call.
  Floats run(const KernelTable& table, KernelContext& ctx, size_t begin, size_t end) const {
    Floats q;
    std::vector<std::byte> fresh;
    std::vector<WindowKeys> window;
    std::vector<const int32_t*> block_tables;
    std::vector<int32_t> num_selected;
    int64_t most = 1;
    for (size_t i = begin; i < end; ++i) most = std::max(most, sequences_[i].member.num_selected);
    std::vector<int32_t> selected;
    int32_t num_fresh = 0;
    for (size_t i = begin; i < end; ++i) {
      const Sequence& s = sequences_[i];
      append(q, s.q);
      if (s.member.tokens == 0) {
        window.emplace_back();
        block_tables.push_back(nullptr);
        num_selected.push_back(0);
        selected.resize(selected.size() + size_t(most), -1);
        continue;
      }
      fresh.insert(fresh.end(), s.fresh.bytes.begin(), s.fresh.bytes.end());
      for (int64_t t = 0; t < s.member.tokens; ++t) {
        const int64_t position = s.member.first_position + t;
        const int64_t first = std::max<int64_t>(position + 1 - kWindow, 0);
        const int64_t in_ring = std::max<int64_t>(s.member.first_position - first, 0);
        const int64_t own = std::min(t + 1, kWindow);
        window.push_back({s.ring.bytes.data(), first, int32_t(in_ring),
                          num_fresh + int32_t(t + 1 - own), int32_t(own)});
        block_tables.push_back(s.block_table.data());
        const std::vector<int32_t>& chosen = s.selected[size_t(t)];
        num_selected.push_back(int32_t(chosen.size()));
        selected.insert(selected.end(), chosen.begin(), chosen.end());
        selected.resize(size_t(most) * num_selected.size(), -1);
      }
      num_fresh += int32_t(s.member.tokens);
    }
    const int64_t tokens = int64_t(window.size());
    Floats out(q.size());
    table.attention(ctx, {q.data(), {tokens, heads_, size_}},
                    {.window_format = window_format_,
                     .ring_slots = kWindow,
                     .fresh = fresh.data(),
                     .window = window,
                     .compressed = blocks_.pages(kRowsPerBlock),
                     .block_tables = block_tables,
                     .selected = {selected.data(), {tokens, most}},
                     .num_selected = num_selected},
                    sink_, 0.02f, {out.data(), {tokens, heads_, size_}}, Rounding::kNone);
    return out;
  }
  size_t num_sequences() const { return sequences_.size(); }

 private:
  static constexpr int32_t kBlocks = 700;
  struct Sequence {
    Floats q;
    StoredKeys ring, fresh;
    std::vector<int32_t> block_table;
    std::vector<std::vector<int32_t>> selected;
    Member member;
  };
  static int64_t rows_of(const Member& member) { return std::max<int64_t>(member.tokens, 1); }

  int64_t heads_, size_;
  KeyFormat window_format_;
  StoredKeys blocks_;
  Floats sink_;
  std::vector<Sequence> sequences_;
};

TEST_F(Batches, RaggedAttentionGivesEachSequenceWhatItGetsAlone) {
  // Decoding long and short ones, chunks at the start and across the window's end, padding.
  const std::vector<Member> small{{1, 500, 90}, {5, 0, 2}, {0, 0, 0}, {1, 0, 0},
                                  {9, 124, 40}, {1, 3, 1}, {0, 0, 0}, {1, 127, 0}};
  const std::vector<Member> at_size{{1, 3000, 512}, {3, 0, 1}, {0, 0, 0}, {1, 130, 65}};
  const auto check = [&](int64_t heads, int64_t size, const std::vector<Member>& members,
                         bool packed) {
    const AttentionBatch batch(heads, size, members, packed);
    Floats want;
    for (size_t s = 0; s < batch.num_sequences(); ++s) {
      append(want, batch.run(ref_kernels(), ref(), s, s + 1));
    }
    expect_everywhere(text(heads, size, packed), want,
                      [&](const KernelTable& table, KernelContext& ctx) {
                        return batch.run(table, ctx, 0, batch.num_sequences());
                      });
  };
  for (bool packed : {false, true}) {
    check(1, 32, small, packed);
    check(5, 96, small, packed);
    check(33, 64, small, packed);
  }
  check(64, 512, at_size, true);
}

// ---- Index scores.

TEST_F(Batches, RaggedIndexScoresGivesEachSequenceWhatItGetsAlone) {
  struct Rows {
    std::vector<int64_t> num_visible;  // by token; padding sees nothing
  };
  const auto check = [&](int64_t heads, int64_t size, KeyFormat format,
                         const std::vector<Rows>& sequences) {
    Random random(51);
    int64_t tokens = 0, num_blocks = 0;
    for (const Rows& s : sequences) {
      tokens += int64_t(s.num_visible.size());
      num_blocks += s.num_visible.back() / kRowsPerBlock + 1;
    }
    Floats q = random.numbers(tokens * heads * size, Data::kBinades);
    if (format == KeyFormat::kMxfp4) {
      ref_kernels().fake_quantize_mxfp4(ref(), {q.data(), {tokens * heads, size}});
    }
    const Floats weights = random.numbers(tokens * heads, Data::kBinades);
    const StoredKeys keys(random.numbers(num_blocks * kRowsPerBlock * size, Data::kBinades),
                          num_blocks * kRowsPerBlock, format);
    std::vector<std::vector<int32_t>> tables;
    for (int32_t next = int32_t(num_blocks); const Rows& s : sequences) {
      tables.emplace_back();
      for (int64_t b = 0; b < s.num_visible.back() / kRowsPerBlock + 1; ++b) {
        tables.back().push_back(--next);
      }
    }
    // Of sequences [begin, end), whose rows start at `first`.
    const auto run = [&](const KernelTable& table, KernelContext& ctx, size_t begin, size_t end,
                         int64_t first) {
      std::vector<IndexKeys> wanted;
      size_t num_scores = 0;
      for (size_t s = begin; s < end; ++s) {
        for (int64_t visible : sequences[s].num_visible) {
          wanted.push_back({visible == 0 ? nullptr : tables[s].data(), visible});
          num_scores += size_t(visible);
        }
      }
      const int64_t count = int64_t(wanted.size());
      Floats scores(num_scores);
      std::vector<float*> rows;
      float* at = scores.data();
      for (const IndexKeys& keys_of_row : wanted) {
        rows.push_back(at);
        at += keys_of_row.count;
      }
      table.index_scores(ctx, {q.data() + first * heads * size, {count, heads, size}},
                         {weights.data() + first * heads, {count, heads}}, 0.375f,
                         keys.pages(kRowsPerBlock), wanted, rows);
      return scores;
    };
    Floats want;
    int64_t first = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      append(want, run(ref_kernels(), ref(), s, s + 1, first));
      first += int64_t(sequences[s].num_visible.size());
    }
    expect_everywhere(text(heads, size, format), want,
                      [&](const KernelTable& table, KernelContext& ctx) {
                        return run(table, ctx, 0, sequences.size(), 0);
                      });
  };
  // Several blocks of 256 keys, chunks whose rows see one more each, padding, one key.
  const std::vector<Rows> small{{{700}}, {{0, 1, 1, 2, 2}}, {{0}}, {{255, 256, 257}},
                                {{1}},   {{0}},             {{513}}};
  for (KeyFormat format : {KeyFormat::kF32, KeyFormat::kMxfp4}) {
    check(1, 32, format, small);
    check(5, 96, format, small);
  }
  check(32, 128, KeyFormat::kMxfp4, {{{3000}}, {{64, 65, 65}}, {{0}}, {{300}}});
}

}  // namespace
}  // namespace millrace
