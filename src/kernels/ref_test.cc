// The reference against the published numeric checks of the model and against
// double precision. Everything fast is compared with the reference bit for bit elsewhere.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/kernels.h"

namespace millrace {
namespace {

class Ref : public ::testing::Test {
 protected:
  ThreadPool pool_{1};
  KernelContext ctx_{pool_};
  const KernelTable& ref_ = ref_kernels();

  std::vector<float> packed_and_back(const std::vector<float>& x, KeyFormat format) {
    const int64_t width = int64_t(x.size());
    std::vector<std::byte> bytes(size_t(key_row_bytes(format, width)));
    std::byte* row = bytes.data();
    const std::byte* stored = row;
    std::vector<float> y(x.size());
    ref_.pack_keys(ctx_, {x.data(), {1, width}}, format, {&row, 1});
    ref_.unpack_keys(ctx_, format, {&stored, 1}, {y.data(), {1, width}});
    return y;
  }
};

std::vector<float> published_input() {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[size_t(i)] = round_to_bf16(float((37 * i) % 64 - 31) / 10.0f);
  return x;
}

TEST_F(Ref, QuantisersGiveThePublishedValues) {
  const std::vector<float> x = published_input();
  std::vector<uint8_t> codes(32), scale(1);
  ref_.quantize_fp8(ctx_, {x.data(), {1, 32}}, {{codes.data(), {1, 32}}, {scale.data(), {1, 1}}});
  EXPECT_EQ(scale[0], 120);
  const std::vector<uint8_t> want{0xFC, 0x6A, 0xF8, 0x75, 0xF1, 0x7A, 0xD5, 0xFB, 0x6E, 0xF6, 0x77,
                                  0xED, 0x7C, 0x5D, 0xFA, 0x72, 0xF4, 0x79, 0xE8, 0x7D, 0x68, 0xF9,
                                  0x74, 0xF2, 0x7A, 0xDD, 0xFC, 0x6D, 0xF7, 0x76, 0xEE, 0x7B};
  EXPECT_EQ(codes, want);

  std::vector<float> fake = x;
  ref_.fake_quantize_fp8(ctx_, {fake.data(), {1, 32}});
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(fake[i], e4m3_to_float(codes[i]) * 0x1p-7f);

  const auto nibbles = [](const std::vector<float>& y, const std::vector<float>& scales) {
    std::string text;
    for (size_t i = 0; i < y.size(); ++i) {
      text += "0123456789ABCDEF"[float_to_e2m1(y[i] / scales[i * scales.size() / y.size()])];
    }
    return text;
  };
  const std::vector<float> nvfp4 = packed_and_back(x, KeyFormat::kNvfp4);
  EXPECT_EQ(nibbles(nvfp4, {0.5f, 0.5625f}), "F2E5C78F4E6B71E4D6A72E5C69F3D5B6");
  std::vector<float> mxfp4 = x;
  ref_.fake_quantize_mxfp4(ctx_, {mxfp4.data(), {1, 32}});
  EXPECT_EQ(nibbles(mxfp4, {1.0f}), "D1C3A58D2C4A50C2B4951C3A48D2C4A5");
}

TEST_F(Ref, StoredKeysHaveTheValuesOfFakeQuantisation) {
  std::vector<float> x;
  for (int i = 0; i < 512; ++i) {
    x.push_back(std::ldexp(float(i * 37 % 101 - 50), i % 23 - 12));
  }
  std::vector<float> fp8 = x, mxfp4 = x;
  ref_.fake_quantize_fp8(ctx_, {fp8.data(), {1, 512}});
  EXPECT_EQ(packed_and_back(x, KeyFormat::kMxfp8), fp8);
  ref_.fake_quantize_mxfp4(ctx_, {mxfp4.data(), {1, 512}});
  EXPECT_EQ(packed_and_back(x, KeyFormat::kMxfp4), mxfp4);
  EXPECT_EQ(packed_and_back(x, KeyFormat::kF32), x);
}

TEST(KeyFormat, RowsHaveThePublishedSizes) {
  EXPECT_EQ(key_row_bytes(KeyFormat::kMxfp8, 512), 528);
  EXPECT_EQ(key_row_bytes(KeyFormat::kNvfp4, 512), 288);
  EXPECT_EQ(key_row_bytes(KeyFormat::kMxfp4, 128), 68);
  EXPECT_EQ(key_row_bytes(KeyFormat::kF32, 512), 2048);
}

TEST_F(Ref, ABlockWithANanOrAnInfinityBecomesNanAsAWhole) {
  for (float poison : {NAN, INFINITY, -INFINITY}) {
    for (auto quantize : {ref_.fake_quantize_fp8, ref_.fake_quantize_mxfp4}) {
      std::vector<float> x(64, 1.0f);
      x[5] = poison;
      quantize(ctx_, {x.data(), {1, 64}});
      for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(x[i]));
      for (size_t i = 32; i < 64; ++i) EXPECT_NEAR(x[i], 1.0f, 0.05f);
    }
    for (KeyFormat format : {KeyFormat::kMxfp8, KeyFormat::kNvfp4, KeyFormat::kMxfp4}) {
      std::vector<float> x(64, 1.0f);
      x[5] = poison;
      const std::vector<float> y = packed_and_back(x, format);
      for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(y[i]));
      for (size_t i = 32; i < 64; ++i) EXPECT_NEAR(y[i], 1.0f, 0.05f);
    }
    std::vector<float> x(32, 1.0f);
    x[31] = poison;
    std::vector<uint8_t> codes(32), scale(1);
    ref_.quantize_fp8(ctx_, {x.data(), {1, 32}}, {{codes.data(), {1, 32}}, {scale.data(), {1, 1}}});
    EXPECT_EQ(scale[0], 255);
  }
}

TEST_F(Ref, HyperConnectionsGiveThePublishedValues) {
  std::vector<float> h{1, -.5f, .25f, 2, -1.5f, .75f, .5f, .125f};
  std::vector<float> fn(24 * 8), base(24);
  for (int k = 0; k < 24; ++k) {
    for (int n = 0; n < 8; ++n) fn[size_t(k * 8 + n)] = float((5 * k + 3 * n) % 11 - 5) / 8.0f;
    base[size_t(k)] = float((7 * k) % 9 - 4) / 16.0f;
  }
  const std::vector<float> scale{.5f, .75f, 1.25f};
  std::vector<float> pre(4), post(4), comb(16);
  ref_.hc_mixes(ctx_, {h.data(), {1, 8}}, {{fn.data(), 24, 8}, scale, base}, {1e-20f, 1e-6f, 20},
                {pre.data(), {1, 4}}, {post.data(), {1, 4}}, {comb.data(), {1, 16}});
  const std::vector<float> want_pre{.6056202f, .4347306f, .7777407f, .3763787f};
  const std::vector<float> want_post{.9235635f, .9248942f, .9595377f, .6901350f};
  const std::vector<float> want_comb{.0269286f, .1858659f, .1236604f, .6635433f,
                                     .0527438f, .6830975f, .1046575f, .1594993f,
                                     .4147512f, .1230796f, .3082401f, .1539286f,
                                     .5055755f, .0079559f, .4634409f, .0230278f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(pre[i], want_pre[i], 2e-7);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(post[i], want_post[i], 2e-7);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(comb[i], want_comb[i], 3e-7);

  const std::vector<float> y{.5f, -1};
  ref_.hc_expand(ctx_, {y.data(), {1, 2}}, {post.data(), {1, 4}}, {comb.data(), {1, 16}},
                 {h.data(), {1, 8}}, Rounding::kNone);
  const std::vector<float> want{.132557f, -.457280f, .638446f, .441672f,
                                .398954f, -.522943f, .829107f, -.584583f};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(h[i], want[i], 1e-6);
  std::vector<float> collapsed(2);
  ref_.hc_collapse(ctx_, {h.data(), {1, 8}}, {pre.data(), {1, 4}}, {collapsed.data(), {1, 2}}, Rounding::kNone);
  EXPECT_NEAR(collapsed[0], .980172f, 1e-6);
  EXPECT_NEAR(collapsed[1], -.711668f, 1e-6);
}

TEST_F(Ref, SwigluGivesThePublishedValues) {
  const std::vector<float> gate{12, -12, 1}, up{-15, 15, 2}, weight{1};
  std::vector<float> z(3);
  ref_.swiglu(ctx_, {gate.data(), {1, 3}}, {up.data(), {1, 3}}, weight, 10.0f, {z.data(), {1, 3}}, Rounding::kNone);
  EXPECT_NEAR(z[0], -99.99546f, 1e-5);
  EXPECT_NEAR(z[1], -.000737f, 1e-6);
  EXPECT_NEAR(z[2], 1.462117f, 1e-6);
}

TEST_F(Ref, RouteBreaksTiesByLowerIdAndListsExpertsAscending) {
  const std::vector<float> logits{0, 1, 1, 1, -1, 2};
  const std::vector<float> bias{5, 0, 0, 0, 0, 0};
  const std::vector<const float*> rows{bias.data()};
  std::vector<int32_t> experts(3);
  std::vector<float> weights(3);
  ref_.route(ctx_, {logits.data(), {1, 6}}, rows, 1.5f, true, {experts.data(), {1, 3}}, {weights.data(), {1, 3}});
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 5}));
  EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1.5f, 1e-6);  // the bias only selects
  EXPECT_NEAR(weights[2] / weights[0], 1.4583991f / .8325546f, 1e-6);
}

TEST_F(Ref, Fp4BlockSumsAreExactWhereAChainWouldRound) {
  // One large and one tiny product whose sum needs 27 bits: the block is rounded once, after.
  std::vector<uint8_t> w(16, 0), w_scale{127}, codes(32, 0), x_scale{127};
  w[0] = 0x77;                   // 6, 6
  w[1] = 0x01;                   // 0.5
  codes[0] = float_to_e4m3(448);
  codes[1] = float_to_e4m3(-448);
  codes[2] = 1;                  // 2^-9
  std::vector<float> out(1);
  const RowGroups::Group group{{w.data(), w_scale.data(), 1, 32}, 0, 1};
  const int32_t row = 0;
  ref_.matmul_fp4(ctx_, {{codes.data(), {1, 32}}, {x_scale.data(), {1, 1}}},
                  {{&group, 1}, {&row, 1}, {&row, 1}}, {out.data(), {1, 1}}, Rounding::kNone);
  EXPECT_EQ(out[0], 0x1p-10f);
}

}  // namespace
}  // namespace millrace
