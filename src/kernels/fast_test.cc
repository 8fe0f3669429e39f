// Every operation but the matrix products, on every instruction set that this machine runs and on
// 1, 2 and 4 threads, equals the reference bit for bit: at awkward sizes, at the model's real
// sizes, on values spread over 12 binades and on zeros, denormals, huge values, infinities, NaN.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

#include "kernels/contract_test.h"
#include "sys/fp_environment.h"

namespace millrace {
namespace {

class EveryTarget : public testing::TestWithParam<const KernelTable*> {
 protected:
  // Runs `op(table, context)`, which returns all outputs, by the reference and by the target.
  template <class Op>
  void compare(const std::string& what, const Op& op) {
    const Floats want = op(ref_kernels(), ref_);
    for (KernelContext* context : {&one_, &two_, &four_}) {
      ASSERT_TRUE(same_bits(op(*GetParam(), *context), want))
          << what << ", " << context->pool().num_threads() << " threads";
    }
  }

  ThreadPool pool_1_{1}, pool_2_{2}, pool_4_{4};
  KernelContext ref_{pool_1_}, one_{pool_1_}, two_{pool_2_}, four_{pool_4_};
};

INSTANTIATE_TEST_SUITE_P(, EveryTarget,
                         testing::ValuesIn(fast_kernels().begin(), fast_kernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

struct Shape {
  int64_t rows, columns, depth = 0;
};


// ---- Quantisation.

TEST_P(EveryTarget, QuantizeFp8EqualsTheReference) {
  for (Data data : kAllData) {
    for (const Shape& shape : {Shape{0, 32}, {1, 32}, {3, 160}, {2, 2304}, {7, 5120}}) {
      const int64_t tokens = shape.rows, size = shape.columns;
      const Floats x = Random(uint64_t(size)).numbers(tokens * size, data);
      compare(text(tokens, size, data), [&](const KernelTable& table, KernelContext& ctx) {
        std::vector<uint8_t> codes(x.size()), scales(x.size() / 32);
        table.quantize_fp8(ctx, view(x, tokens),
                           {{codes.data(), {tokens, tokens ? size : 0}},
                            {scales.data(), {tokens, tokens ? size / 32 : 0}}});
        Floats all(codes.begin(), codes.end());
        append(all, Floats(scales.begin(), scales.end()));
        return all;
      });
    }
  }
}

// In place, on every kind of data and at every exponent, where scales have their limits.
template <class Compare>
void fake_quantization_cases(void (*KernelTable::*quantize)(KernelContext&, Matrix<float>),
                             const Compare& compare) {
  const auto check = [&](const std::string& what, const Floats& x, int64_t rows) {
    compare(what, [&](const KernelTable& table, KernelContext& ctx) {
      Floats y = x;
      (table.*quantize)(ctx, view(y, rows));
      return y;
    });
  };
  for (Data data : kAllData) {
    for (const Shape& shape : {Shape{0, 32}, {1, 32}, {3, 160}, {640, 512}}) {
      Random random{uint64_t(shape.columns)};
      check(text(shape.rows, shape.columns, data), random.numbers(shape.rows * shape.columns, data),
            shape.rows);
    }
  }
  for (int exponent = -149; exponent <= 127; ++exponent) {
    Random random(7);
    Floats x(64);
    for (float& v : x) v = std::ldexp(random.number(Data::kBinades) / 16.0f, exponent);
    check(text(exponent), x, 2);
  }
}

TEST_P(EveryTarget, FakeQuantizeFp8EqualsTheReference) {
  fake_quantization_cases(&KernelTable::fake_quantize_fp8,
                          [&](const auto&... arguments) { compare(arguments...); });
}

TEST_P(EveryTarget, FakeQuantizeMxfp4EqualsTheReference) {
  fake_quantization_cases(&KernelTable::fake_quantize_mxfp4,
                          [&](const auto&... arguments) { compare(arguments...); });
}

// ---- Keys.

constexpr KeyFormat kAllFormats[] = {KeyFormat::kF32, KeyFormat::kMxfp8, KeyFormat::kNvfp4,
                                     KeyFormat::kMxfp4};

TEST_P(EveryTarget, PackKeysEqualsTheReference) {
  for (KeyFormat format : kAllFormats) {
    const auto check = [&](const std::string& what, const Floats& x, int64_t rows) {
      const int64_t width = rows == 0 ? 0 : int64_t(x.size()) / rows;
      const int64_t row_bytes = key_row_bytes(format, width);
      compare(what + text(format), [&](const KernelTable& table, KernelContext& ctx) {
        std::vector<uint8_t> bytes(size_t(rows * row_bytes));
        std::vector<std::byte*> addresses;  // last row first
        for (int64_t r = rows; r-- > 0;) {
          addresses.push_back(reinterpret_cast<std::byte*>(bytes.data()) + r * row_bytes);
        }
        table.pack_keys(ctx, view(x, rows), format, addresses);
        return Floats(bytes.begin(), bytes.end());
      });
    };
    for (Data data : kAllData) {
      for (const Shape& shape : {Shape{0, 32}, {1, 32}, {3, 160}, {200, 512}}) {
        Random random{uint64_t(shape.columns)};
        check(text(shape.rows, shape.columns, data),
              random.numbers(shape.rows * shape.columns, data), shape.rows);
      }
    }
    for (int exponent = -149; exponent <= 127; ++exponent) {
      Random random(7);
      Floats x(64);
      for (float& v : x) v = std::ldexp(random.number(Data::kBinades) / 16.0f, exponent);
      check(text(exponent), x, 2);
    }
  }
}

// Any codes and scales at all.
TEST_P(EveryTarget, UnpackKeysEqualsTheReference) {
  for (KeyFormat format : {KeyFormat::kMxfp8, KeyFormat::kNvfp4, KeyFormat::kMxfp4}) {
    for (const Shape& shape : {Shape{1, 32}, {3, 160}, {100, 512}}) {
      const int64_t row_bytes = key_row_bytes(format, shape.columns);
      Random random(8);
      std::vector<uint8_t> bytes = random.bytes(shape.rows * row_bytes);
      std::vector<const std::byte*> rows;
      for (int64_t r = 0; r < shape.rows; ++r) {
        uint8_t* row = &bytes[size_t(r * row_bytes)];
        // Scales of nvfp4 are positive.
        for (int64_t i = shape.columns / 2; format == KeyFormat::kNvfp4 && i < row_bytes; ++i) {
          row[i] &= 0x7f;
        }
        rows.push_back(reinterpret_cast<const std::byte*>(row));
      }
      compare(text(format, shape.rows, shape.columns),
              [&](const KernelTable& table, KernelContext& ctx) {
                Floats out(size_t(shape.rows * shape.columns));
                table.unpack_keys(ctx, format, rows, view(out, shape.rows));
                return out;
              });
    }
  }
}

// ---- Norms and rotation.

TEST_P(EveryTarget, RmsNormEqualsTheReference) {
  for (Data data : kAllData) {
    for (int64_t size : {1, 7, 16, 33, 100, 512, 1280, 5120}) {
      for (int64_t tokens : {1, 40}) {
        Random random{uint64_t(size)};
        const Floats x = random.numbers(tokens * size, data);
        const std::vector<bf16> weight = random.bf16_numbers(size);
        for (Rounding rounding : kRoundings) {
          compare(text(tokens, size, data, rounding), [&](const KernelTable& table,
                                                          KernelContext& ctx) {
            Floats out(x.size()), in_place = x;
            table.rms_norm(ctx, view(x, tokens), weight, 1e-6f, view(out, tokens), rounding);
            table.rms_norm(ctx, view(in_place, tokens), weight, 1e-6f, view(in_place, tokens),
                           rounding);
            append(out, in_place);
            return out;
          });
        }
      }
    }
  }
}

TEST_P(EveryTarget, RopeEqualsTheReference) {
  struct Case {
    int64_t tokens, heads, size, pairs;
  };
  for (Data data : kAllData) {
    for (const Case& c : {Case{1, 1, 2, 1}, {1, 3, 30, 13}, {3, 5, 96, 16}, {20, 64, 512, 32}}) {
      Random random(3);
      const Floats x = random.numbers(c.tokens * c.heads * c.size, data);
      const Floats cos = random.numbers(c.tokens * c.pairs, data);
      const Floats sin = random.numbers(c.tokens * c.pairs, data);
      for (Rounding rounding : kRoundings) {
        for (bool inverse : {false, true}) {
          compare(text(c.heads, data, rounding, inverse),
                  [&](const KernelTable& table, KernelContext& ctx) {
                    Floats y = x;
                    table.rope(ctx, {y.data(), {c.tokens, c.heads, c.size}}, view(cos, c.tokens),
                               view(sin, c.tokens), inverse, rounding);
                    return y;
                  });
        }
      }
    }
  }
}

// ---- Hyper-connections.

struct StreamCase {
  int64_t tokens, num_streams, size;
  Data data;
  std::string name() const { return text(tokens, num_streams, size, data); }
};

std::vector<StreamCase> stream_cases() {
  std::vector<StreamCase> cases;
  for (Data data : kAllData) {
    for (int64_t m : {1, 2, 3, 4, 6}) {
      for (int64_t size : {1, 13, 328}) {
        for (int64_t tokens : {1, 5}) cases.push_back({tokens, m, size, data});
      }
    }
    for (int64_t tokens : {1, 2, 35}) cases.push_back({tokens, 4, 5120, data});
  }
  cases.push_back({0, 4, 64, Data::kBinades});
  return cases;
}

TEST_P(EveryTarget, HcMixesEqualsTheReference) {
  for (const StreamCase& c : stream_cases()) {
    const int64_t m = c.num_streams, rows = (2 + m) * m;
    Random random(5);
    const Floats streams = random.numbers(c.tokens * m * c.size, c.data);
    const Floats fn = random.numbers(rows * m * c.size, Data::kBinades);
    const Floats scale = random.numbers(3, Data::kBinades),
                 base = random.numbers(rows, Data::kBinades);
    compare(c.name(), [&](const KernelTable& table, KernelContext& ctx) {
      Floats pre(size_t(c.tokens * m)), post(pre.size()), comb(size_t(c.tokens * m * m));
      table.hc_mixes(ctx, {streams.data(), {c.tokens, m * c.size}},
                     {{fn.data(), rows, m * c.size}, scale, base}, {1e-6f, 1e-6f, 20},
                     {pre.data(), {c.tokens, m}}, {post.data(), {c.tokens, m}},
                     {comb.data(), {c.tokens, m * m}});
      append(pre, post);
      append(pre, comb);
      return pre;
    });
  }
}

TEST_P(EveryTarget, HcCollapseEqualsTheReference) {
  for (const StreamCase& c : stream_cases()) {
    Random random(6);
    const Floats streams = random.numbers(c.tokens * c.num_streams * c.size, c.data);
    const Floats mix = random.numbers(c.tokens * c.num_streams, Data::kBinades);
    for (Rounding rounding : kRoundings) {
      compare(c.name(), [&](const KernelTable& table, KernelContext& ctx) {
        Floats y(size_t(c.tokens * c.size));
        table.hc_collapse(ctx, {streams.data(), {c.tokens, c.num_streams * c.size}},
                          {mix.data(), {c.tokens, c.num_streams}}, {y.data(), {c.tokens, c.size}},
                          rounding);
        return y;
      });
    }
  }
}

TEST_P(EveryTarget, HcExpandEqualsTheReference) {
  for (const StreamCase& c : stream_cases()) {
    const int64_t m = c.num_streams;
    Random random(7);
    const Floats streams = random.numbers(c.tokens * m * c.size, c.data);
    const Floats y = random.numbers(c.tokens * c.size, c.data);
    const Floats post = random.numbers(c.tokens * m, Data::kBinades);
    const Floats comb = random.numbers(c.tokens * m * m, Data::kBinades);
    for (Rounding rounding : kRoundings) {
      compare(c.name(), [&](const KernelTable& table, KernelContext& ctx) {
        Floats updated = streams;
        table.hc_expand(ctx, {y.data(), {c.tokens, c.size}}, {post.data(), {c.tokens, m}},
                        {comb.data(), {c.tokens, m * m}}, {updated.data(), {c.tokens, m * c.size}},
                        rounding);
        return updated;
      });
    }
  }
}

TEST_P(EveryTarget, HcMeanEqualsTheReference) {
  for (const StreamCase& c : stream_cases()) {
    const Floats streams = Random(8).numbers(c.tokens * c.num_streams * c.size, c.data);
    for (Rounding rounding : kRoundings) {
      compare(c.name(), [&](const KernelTable& table, KernelContext& ctx) {
        Floats mean(size_t(c.tokens * c.size));
        table.hc_mean(ctx, {streams.data(), {c.tokens, c.num_streams * c.size}}, int(c.num_streams),
                      {mean.data(), {c.tokens, c.size}}, rounding);
        return mean;
      });
    }
  }
}

// ---- Attention.

struct AttentionCase {
  int64_t heads, size;
  std::vector<int32_t> window_count, num_selected;  // per token
};

// `scale` keeps exponentials in range; a larger one drives them to 0 and beyond.
template <class Compare>
void attention_case(const AttentionCase& c, Data data, float scale, bool packed,
                    const Compare& compare) {
  const int64_t tokens = int64_t(c.window_count.size());
  constexpr int64_t kRing = 131, kFresh = 70, kCompressed = 1500, kRowsPerBlock = 4;
  Random random(uint64_t(c.heads * c.size));
  const Floats q = random.numbers(tokens * c.heads * c.size, data);
  const StoredKeys window(random.numbers((kRing + kFresh) * c.size, data), kRing + kFresh,
                          packed ? KeyFormat::kMxfp8 : KeyFormat::kF32);
  const StoredKeys compressed(random.numbers(kCompressed * c.size, data), kCompressed,
                              packed ? KeyFormat::kNvfp4 : KeyFormat::kF32);
  const Floats sink = random.numbers(c.heads, Data::kBinades);
  // Two sequences, whose tables list the blocks in different orders.
  std::vector<int32_t> tables[2];
  for (int32_t block = 0; block < kCompressed / kRowsPerBlock; ++block) {
    tables[0].push_back(kCompressed / kRowsPerBlock - 1 - block);
    tables[1].push_back(block ^ 2);
  }
  std::vector<const int32_t*> block_tables;
  std::vector<WindowKeys> window_keys;
  const int64_t most = *std::max_element(c.num_selected.begin(), c.num_selected.end()) + 1;
  std::vector<int32_t> selected(size_t(tokens * most), -1);
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t count = c.window_count[size_t(t)], chosen = c.num_selected[size_t(t)];
    const int32_t fresh = int32_t(random.below(std::min<int64_t>(count, kFresh) + 1));
    window_keys.push_back({window.bytes.data(), random.below(1000), count - fresh,
                           int32_t(random.below(kFresh - fresh + 1)), fresh});
    block_tables.push_back(tables[t % 2].data());
    int32_t row = int32_t(random.below(kCompressed - 2 * chosen - 4));
    for (int32_t s = 0; s < chosen; ++s) {
      selected[size_t(t * most + s)] = row += 1 + int32_t(random.below(2));
    }
  }
  for (Rounding rounding : kRoundings) {
    compare(text(c.heads, c.size, tokens, data, packed, rounding),
            [&](const KernelTable& table, KernelContext& ctx) {
              Floats out(q.size());
              table.attention(ctx, {q.data(), {tokens, c.heads, c.size}},
                              {.window_format = window.format,
                               .ring_slots = kRing,
                               .fresh = window.bytes.data() + kRing * window.row_bytes,
                               .window = window_keys,
                               .compressed = compressed.pages(kRowsPerBlock),
                               .block_tables = block_tables,
                               .selected = {selected.data(), {tokens, most}},
                               .num_selected = c.num_selected},
                              sink, scale, {out.data(), {tokens, c.heads, c.size}}, rounding);
              return out;
            });
  }
}

TEST_P(EveryTarget, AttentionEqualsTheReference) {
  const std::vector<AttentionCase> cases{
      {1, 1, {0}, {0}},
      {1, 3, {1}, {0}},
      {3, 20, {0, 1, 6}, {7, 0, 0}},
      {5, 96, {1, 17, 130}, {0, 6, 71}},
      {8, 64, {64}, {64}},
      {17, 40, {20, 21}, {3, 50}},
      {40, 33, {128, 5, 1, 99}, {2, 0, 100, 65}},
      {33, 64, {128, 127, 90, 128}, {100, 99, 13, 70}},
      {5, 32, {0, 7, 3, 8, 90, 3, 128, 1, 64}, {0, 3, 5, 1, 9, 2, 40, 8, 0}},
  };
  for (Data data : kAllData) {
    for (const AttentionCase& c : cases) {
      for (float scale : {0.001f, 0.3f}) {
        for (bool packed : {false, true}) {
          if (packed && c.size % 32 != 0) continue;
          attention_case(c, data, scale, packed,
                         [&](const auto&... arguments) { compare(arguments...); });
        }
      }
    }
  }
}

TEST_P(EveryTarget, AttentionEqualsTheReferenceAtTheModelsSize) {
  attention_case({64, 512, {128}, {512}}, Data::kBinades, 0.001f, true,
                 [&](const auto&... arguments) { compare(arguments...); });
}

TEST_P(EveryTarget, CompressPairsEqualsTheReference) {
  for (Data data : kAllData) {
    for (const Shape& shape : {Shape{0, 8}, {1, 1}, {1, 13}, {3, 96}, {33, 512}}) {
      const int64_t pairs = shape.rows, size = shape.columns;
      Random random(9);
      const Floats a = random.numbers(2 * pairs * size, data);
      const Floats b = random.numbers(2 * pairs * size, data);
      for (Rounding rounding : kRoundings) {
        compare(text(pairs, size, data), [&](const KernelTable& table, KernelContext& ctx) {
          Floats out(size_t(pairs * size));
          std::vector<const float*> a_rows, b_rows;  // each from its own side
          for (int64_t r = 0; r < 2 * pairs; ++r) {
            a_rows.push_back(a.data() + (2 * pairs - 1 - r) * size);
            b_rows.push_back(b.data() + r * size);
          }
          table.compress_pairs(ctx, a_rows, b_rows, {out.data(), {pairs, size}}, rounding);
          return out;
        });
      }
    }
  }
}

// What a query of index_case is scored against, of the rows of its sequence.
struct Wanted {
  int64_t count;
  std::vector<int32_t> groups;  // of kGroupRows rows; empty: the first rows
};
constexpr int64_t kGroupRows = 3;

// quantised_queries: whether they are what fake_quantize_mxfp4 makes, as in `reference` numerics.
// apart: binades between the blocks of a query, so that the sum of blocks is not exact.
template <class Compare>
void index_case(int64_t heads, int64_t size, const std::vector<Wanted>& wanted, Data data,
                KeyFormat format, bool quantised_queries, const Compare& compare, int apart = 0) {
  constexpr int64_t kRowsPerBlock = 4;
  const int64_t tokens = int64_t(wanted.size());
  int64_t num_rows = 0;
  for (const Wanted& w : wanted) {
    for (int32_t group : w.groups) num_rows = std::max(num_rows, (group + 1) * kGroupRows);
    num_rows = std::max(num_rows, w.count);
  }
  const int64_t blocks = num_rows / kRowsPerBlock + 1;
  Random random(uint64_t(heads + size));
  Floats q = random.numbers(tokens * heads * size, data);
  for (size_t i = 0; i < q.size(); ++i) {
    const int block = int(i % size_t(size)) / int(kQuantBlock);
    q[i] = std::ldexp(q[i], apart * (block % 3 - 1));
  }
  if (quantised_queries) {
    ThreadPool pool(1);
    KernelContext ctx(pool);
    ref_kernels().fake_quantize_mxfp4(ctx, {q.data(), {tokens * heads, size}});
  }
  const Floats weights = random.numbers(tokens * heads, data);
  const StoredKeys keys(random.numbers(blocks * kRowsPerBlock * size, data),
                        blocks * kRowsPerBlock, format);
  std::vector<int32_t> tables[2];  // of two sequences; the second has the last tokens
  for (int32_t block = 0; block < blocks; ++block) {
    tables[0].push_back(int32_t(blocks - 1 - block));
    tables[1].push_back(block);
  }
  std::vector<IndexKeys> index_keys;
  for (int64_t t = 0; t < tokens; ++t) {
    const Wanted& w = wanted[size_t(t)];
    index_keys.push_back({tables[t > tokens / 2].data(), w.count,
                          w.groups.empty() ? nullptr : w.groups.data(), kGroupRows});
  }
  compare(text(tokens, heads, size, blocks, data, format, quantised_queries),
          [&](const KernelTable& table, KernelContext& ctx) {
            Floats scores;
            for (const Wanted& w : wanted) scores.resize(scores.size() + size_t(w.count + 1), 7.0f);
            std::vector<float*> rows;  // one more value each, which must stay
            size_t at = 0;
            for (const Wanted& w : wanted) {
              rows.push_back(scores.data() + at);
              at += size_t(w.count + 1);
            }
            table.index_scores(ctx, {q.data(), {tokens, heads, size}}, view(weights, tokens),
                               0.375f, keys.pages(kRowsPerBlock), index_keys, rows);
            return scores;
          });
}

TEST_P(EveryTarget, IndexScoresEqualsTheReference) {
  const auto check = [&](const auto&... arguments) { compare(arguments...); };
  for (Data data : kAllData) {
    for (KeyFormat format : {KeyFormat::kF32, KeyFormat::kMxfp4}) {
      for (bool quantised : {false, true}) {
        index_case(1, 32, {{0, {}}}, data, format, quantised, check);
        index_case(1, 32, {{1, {}}}, data, format, quantised, check);
        index_case(4, 32, {{0, {}}, {17, {}}, {40, {}}}, data, format, quantised, check);
        index_case(5, 96, {{301, {}}, {1, {}}, {23, {}}, {299, {}}}, data, format, quantised,
                   check);
        index_case(33, 64, {{25, {}}, {24, {}}, {97, {}}}, data, format, quantised, check);
      }
    }
  }
}

TEST_P(EveryTarget, IndexScoresAddsBlocksInTheContractsOrder) {
  const auto check = [&](const auto&... arguments) { compare(arguments...); };
  for (KeyFormat format : {KeyFormat::kF32, KeyFormat::kMxfp4}) {
    for (int64_t size : {96, 128}) {
      const auto apart = [&](int binades) {
        index_case(5, size, {{50, {}}}, Data::kBinades, format, true, check, binades);
      };
      apart(8);
      apart(11);
    }
  }
}

TEST_P(EveryTarget, IndexScoresOfGroupsEqualsTheReference) {
  const auto check = [&](const auto&... arguments) { compare(arguments...); };
  const std::vector<Wanted> wanted{{7, {0, 4, 5}}, {9, {1, 2, 90}}, {40, {}}, {1, {33}}, {2, {8}}};
  for (KeyFormat format : {KeyFormat::kF32, KeyFormat::kMxfp4}) {
    index_case(5, 64, wanted, Data::kBinades, format, true, check);
  }
}

TEST_P(EveryTarget, IndexScoresEqualsTheReferenceAtTheModelsSize) {
  for (bool quantised : {false, true}) {
    index_case(32, 128, {{5000, {}}}, Data::kBinades, KeyFormat::kMxfp4, quantised,
               [&](const auto&... arguments) { compare(arguments...); });
  }
}

// ---- Engram.

TEST_P(EveryTarget, GatherFp8EqualsTheReference) {
  for (const Shape& shape : {Shape{0, 1, 32}, {1, 1, 32}, {3, 5, 64}, {40, 16, 320}}) {
    const int64_t tokens = shape.rows, columns = shape.columns, width = shape.depth;
    constexpr int64_t kRows = 100;
    Random random(10);
    const std::vector<uint8_t> codes = random.bytes(kRows * width);
    const std::vector<uint8_t> scales = random.bytes(kRows * width / 32, 0, 254);
    std::vector<int64_t> row_ids(size_t(tokens * columns));
    for (int64_t& id : row_ids) id = random.below(kRows);
    compare(text(tokens, columns, width), [&](const KernelTable& table, KernelContext& ctx) {
      Floats out(size_t(tokens * columns * width));
      table.gather_fp8(ctx, {codes.data(), scales.data(), kRows, width},
                       {row_ids.data(), {tokens, columns}},
                       {out.data(), {tokens, columns * width}});
      return out;
    });
  }
}

TEST_P(EveryTarget, EngramUpdateEqualsTheReference) {
  for (const StreamCase& c : stream_cases()) {
    const int64_t m = c.num_streams;
    Random random(11);
    const Floats key_value = random.numbers(c.tokens * (m + 1) * c.size, c.data);
    const Floats streams = random.numbers(c.tokens * m * c.size, c.data);
    const std::vector<bf16> q = random.bf16_numbers(m * c.size),
                            k = random.bf16_numbers(m * c.size);
    std::vector<uint8_t> dead(size_t(c.tokens));
    for (size_t t = 0; t < dead.size(); ++t) dead[t] = t % 3 == 1;
    for (Rounding rounding : kRoundings) {
      compare(c.name(), [&](const KernelTable& table, KernelContext& ctx) {
        Floats updated = streams;
        table.engram_update(ctx, {key_value.data(), {c.tokens, (m + 1) * c.size}}, q, k, 1e-6f,
                            dead, {updated.data(), {c.tokens, m * c.size}}, rounding);
        return updated;
      });
    }
  }
}

// ---- Mixture of experts.

TEST_P(EveryTarget, RouteEqualsTheReference) {
  for (int64_t rows : {1, 5, 70}) {
    for (int64_t num_experts : {6, 384}) {
      Random random{uint64_t(rows * num_experts)};
      const Floats logits = random.numbers(rows * num_experts, Data::kBinades);
      const Floats biases = random.numbers(2 * num_experts, Data::kBinades);
      std::vector<const float*> bias;  // text and image rows
      for (int64_t t = 0; t < rows; ++t) bias.push_back(biases.data() + t % 3 / 2 * num_experts);
      compare(text(rows, num_experts), [&](const KernelTable& table, KernelContext& ctx) {
        std::vector<int32_t> experts(size_t(rows * 4));
        Floats weights(size_t(rows * 4));
        table.route(ctx, view(logits, rows), bias, 1.5f, true, {experts.data(), {rows, 4}},
                    {weights.data(), {rows, 4}});
        weights.insert(weights.end(), experts.begin(), experts.end());
        return weights;
      });
    }
  }
}

TEST_P(EveryTarget, SwigluEqualsTheReference) {
  for (Data data : kAllData) {
    for (const Shape& shape : {Shape{0, 8}, {1, 1}, {3, 13}, {7, 2304}, {40, 64}}) {
      const int64_t tokens = shape.rows, size = shape.columns;
      Random random(12);
      Floats gate = random.numbers(tokens * size, data), up = random.numbers(tokens * size, data);
      for (size_t i = 0; i < gate.size(); i += 3) gate[i] *= 8, up[i] *= 8;  // beyond the limit
      const Floats weight = random.numbers(tokens, Data::kBinades);
      for (Rounding rounding : kRoundings) {
        compare(text(tokens, size, data), [&](const KernelTable& table, KernelContext& ctx) {
          Floats z(gate.size());
          table.swiglu(ctx, {gate.data(), {tokens, size}}, {up.data(), {tokens, size}}, weight,
                       10.0f, {z.data(), {tokens, size}}, rounding);
          return z;
        });
      }
    }
  }
}

// Silu meets every float exponent through swiglu: a sweep of its exponential.
TEST_P(EveryTarget, SwigluExponentialEqualsTheReference) {
  Floats gate;
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 65521)
    gate.push_back(std::bit_cast<float>(uint32_t(bits)));
  for (float x = -110; x < 110; x += 0.0078125f) gate.push_back(x);
  const Floats up(gate.size(), 1.0f), weight(1, 1.0f);
  compare("", [&](const KernelTable& table, KernelContext& ctx) {
    Floats z(gate.size());
    table.swiglu(ctx, view(gate, 1), view(up, 1), weight, 200.0f, view(z, 1), Rounding::kNone);
    return z;
  });
}

TEST_P(EveryTarget, CombineExpertsEqualsTheReference) {
  for (Data data : kAllData) {
    for (const Shape& shape : {Shape{0, 4, 8}, {1, 1, 1}, {3, 2, 13}, {2, 6, 5120}, {40, 6, 128}}) {
      const int64_t tokens = shape.rows, slots = shape.columns, size = shape.depth;
      Random random(13);
      const Floats expert_out = random.numbers(tokens * slots * size, data);
      const Floats shared = random.numbers(tokens * size, data);
      for (Rounding rounding : kRoundings) {
        compare(text(tokens, slots, size, data), [&](const KernelTable& table, KernelContext& ctx) {
          Floats out(shared.size());
          table.combine_experts(ctx, {expert_out.data(), {tokens, slots, size}},
                                {shared.data(), {tokens, size}}, {out.data(), {tokens, size}},
                                rounding);
          return out;
        });
      }
    }
  }
}

// ---- The table as a whole.

TEST_P(EveryTarget, HasTheReferencesDigestOnAnyNumberOfThreads) {
  const uint64_t want = numerics_digest(ref_kernels(), ref_);
  for (KernelContext* context : {&one_, &two_, &four_}) {
    EXPECT_EQ(numerics_digest(*GetParam(), *context), want) << context->pool().num_threads();
  }
}

TEST(KernelTables, AreFoundByNameInAnyCase) {
  ASSERT_FALSE(fast_kernels().empty());
  EXPECT_EQ(find_kernels(""), fast_kernels().front());
  EXPECT_EQ(find_kernels("ref"), &ref_kernels());
  EXPECT_EQ(find_kernels("Ref"), &ref_kernels());
  EXPECT_EQ(find_kernels("avx"), nullptr);
  for (const KernelTable* table : fast_kernels()) {
    std::string lower(table->name);
    for (char& c : lower) c = char(std::tolower(c));
    EXPECT_EQ(find_kernels(lower), table);
    EXPECT_EQ(find_kernels(table->name), table);
  }
}

#if defined(__x86_64__)
// A host process may have set flush-to-zero and denormals-are-zero. Pool threads set their own
// state; the caller must hold a ScopedFpEnvironment, as every entry into the model does.
TEST_P(EveryTarget, SurvivesACallerThatFlushesDenormals) {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  Random random(14);
  const Floats a = random.numbers(64 * 512, Data::kFinite), b(64 * 512, 0x1p-20f);
  const auto collapse = [&](const KernelTable& table, KernelContext& ctx) {
    Floats y(64 * 256);
    table.hc_collapse(ctx, view(a, 64), {b.data(), {64, 2}}, view(y, 64), Rounding::kNone);
    return y;
  };
  const Floats want = collapse(ref_kernels(), ref_);
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | kFlushToZero | kDenormalsAreZero);
  const Floats flushed = collapse(*GetParam(), one_);
  Floats guarded;
  uint64_t digest;
  {
    ScopedFpEnvironment environment;
    guarded = collapse(*GetParam(), two_);
    digest = numerics_digest(*GetParam(), two_);
  }
  __builtin_ia32_ldmxcsr(saved);
  EXPECT_FALSE(same_bits(flushed, want)) << "the data does not show the difference";
  EXPECT_TRUE(same_bits(guarded, want));
  EXPECT_EQ(digest, numerics_digest(ref_kernels(), ref_));
}
#endif

}  // namespace
}  // namespace millrace
