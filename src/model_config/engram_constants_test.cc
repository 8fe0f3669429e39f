#include "model_config/engram_constants.h"

#include <gtest/gtest.h>

#include "model_config/test_configs.h"

namespace millrace {
namespace {

std::vector<EngramTable> released_tables() {
  return engram_tables(test::released_config());
}

ModelConfig mini_config() {
  ModelConfig config;
  config.engram_layer_ids = {1, 4};
  config.engram_max_ngram_size = 4;
  config.engram_n_heads = 2;
  config.engram_vocab_size = 1024;
  config.engram_compressed_vocab_size = 512;
  return config;
}

TEST(EngramConstants, GeneratorIsNumpys) { EXPECT_EQ(numpy_random(12345), 0.22733602246716966); }

TEST(EngramConstants, ReleasedMultipliersAreTheKnownOnes) {
  const std::vector<EngramTable> tables = released_tables();
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_EQ(tables[0].multipliers,
            (std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(tables[1].multipliers,
            (std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(EngramConstants, ReleasedPrimesAreTheKnownOnes) {
  const std::vector<EngramTable> tables = released_tables();
  const std::vector<std::vector<int64_t>> above_16000000 = {
      {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
       277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463},
      {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
       711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889}};
  for (size_t t = 0; t < 2; ++t) {
    ASSERT_EQ(tables[t].primes.size(), 24u);
    for (size_t c = 0; c < 24; ++c) {
      EXPECT_EQ(tables[t].primes[c], 16000000 + above_16000000[t][c]) << t << ", " << c;
    }
  }
  EXPECT_EQ(tables[0].num_rows, 384006168);
  EXPECT_EQ(tables[1].num_rows, 384016682);
}

TEST(EngramConstants, MiniConfigurationHasItsPublishedConstants) {
  const std::vector<EngramTable> tables = engram_tables(mini_config());
  EXPECT_EQ(tables[0].primes, (std::vector<int64_t>{1031, 1033, 1039, 1049, 1051, 1061}));
  EXPECT_EQ(tables[1].primes, (std::vector<int64_t>{1063, 1069, 1087, 1091, 1093, 1097}));
  EXPECT_EQ(tables[0].multipliers, (std::vector<int64_t>{14831304026200453, 936705081716061,
                                                         6959601268494069, 14319439928568407}));
  EXPECT_EQ(tables[1].multipliers, (std::vector<int64_t>{15920565596405625, 975009545214551,
                                                         14254820516660309, 3668506406680991}));
  EXPECT_EQ(tables[0].num_rows, 6264);
  EXPECT_EQ(tables[1].num_rows, 6500);
  EXPECT_EQ(tables[1].offsets, (std::vector<int64_t>{0, 1063, 2132, 3219, 4310, 5403}));
}

TEST(EngramConstants, WithoutEngramLayersThereAreNoTables) {
  EXPECT_TRUE(engram_tables(ModelConfig{}).empty());
}

struct RowVector {
  size_t table;
  size_t position;
  std::vector<int64_t> rows;
};

// The published vectors for the history [0, 3, 1000, 99091, DEAD, 42, 7].
const RowVector kRowVectors[] = {
    {0,
     0,
     {
         5702652,   24393184,  39183301,  61503783,  78984481,  90144770,  103724983, 121476532,
         131476717, 152385926, 164143652, 191599181, 198145581, 217419202, 238329687, 247482304,
         257520185, 283540304, 288689443, 315264704, 322314652, 348890037, 367865216, 380066193,
     }},
    {0,
     3,
     {
         11341399,  16654213,  38925495,  49642220,  70208282,  84661260,  109312434, 113579617,
         136178632, 154514356, 171867458, 187410307, 195301296, 220067837, 233243028, 253230477,
         268593942, 283227839, 302068543, 314694077, 329631670, 345818514, 364619155, 379649661,
     }},
    {0,
     6,
     {
         10635489,  23985305,  39744525,  53818166,  66930043,  81967808,  97486831,  123477372,
         129578190, 159309570, 160583253, 181959424, 205605123, 209428374, 239164368, 251626066,
         269112517, 272741337, 303494288, 310870765, 326455421, 349832519, 353886756, 368227255,
     }},
    {1,
     3,
     {
         11585734,  31218676,  42536794,  54299878,  77447231,  88082999,  100028548, 123623046,
         141226849, 149987614, 175561564, 182776233, 206669988, 222858356, 234461636, 248873386,
         257125733, 275738191, 294912291, 320007927, 332257951, 340429761, 355332207, 369004071,
     }},
    {1,
     6,
     {
         11305274,  27334783,  40171751,  59397793,  69011134,  82040608,  104597715, 123883017,
         138735616, 159880379, 173611796, 183901480, 203916413, 218224779, 231414773, 241147764,
         267735424, 279765183, 298014299, 312693728, 334521217, 342616482, 363512344, 371987270,
     }},
};

TEST(EngramRows, EqualThePublishedVectors) {
  const std::vector<EngramTable> tables = released_tables();
  const std::vector<int32_t> history = {0, 3, 1000, 99091, kEngramDead, 42, 7};
  for (const RowVector& expected : kRowVectors) {
    const std::vector<int32_t> window(history.rend() - 1 - int64_t(expected.position),
                                      history.rend());
    std::vector<int64_t> rows(24);
    engram_rows(tables[expected.table], 2, window, rows);
    EXPECT_EQ(rows, expected.rows)
        << "table " << expected.table << ", position " << expected.position;
  }
}

TEST(EngramRows, NothingBehindADeadPositionIsSeen) {
  const std::vector<EngramTable> tables = engram_tables(mini_config());
  std::vector<int64_t> rows(6), shadowed(6), missing(6);
  engram_rows(tables[0], 2, std::vector<int32_t>{5, kEngramDead, 7, 8}, rows);
  engram_rows(tables[0], 2, std::vector<int32_t>{5, kEngramDead, 100, kEngramDead}, shadowed);
  engram_rows(tables[0], 2, std::vector<int32_t>{5}, missing);
  EXPECT_EQ(rows, shadowed);
  EXPECT_EQ(rows, missing);
}

}  // namespace
}  // namespace millrace
