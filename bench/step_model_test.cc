#include "bench/step_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "model_config/cost.h"
#include "synth/shapes.h"

namespace millrace {
namespace {

StepTime only(StepPart part, double ns) {
  StepTime time;
  time.of(part) = ns;
  return time;
}

// A window layer, two readers and their source.
std::vector<LayerInfo> four_layers() {
  std::vector<LayerInfo> layers(4);
  for (size_t l = 1; l < 4; ++l) {
    layers[l].compress_ratio = 2;
    layers[l].kv_source = layers[l].index_source = 1;
  }
  layers[1].owns_compressor = layers[1].owns_index = true;
  return layers;
}

MeasuredStep measured_step() {
  MeasuredStep measured;
  measured.num_rows = 1;
  measured.layers["window"] = only(StepPart::kAttention, 1);
  measured.layers["ratio 2 source"] = only(StepPart::kIndexing, 10);
  measured.layers["ratio 2 reader"] = only(StepPart::kAttention, 100);
  measured.embedding_ns = 5;
  measured.head_ns = 7;
  measured.experts = {{1, 1000}, {2, 1500}};
  return measured;
}

TEST(PredictStep, TakesOfEveryLayerWhatItsKindTook) {
  const std::vector<LayerInfo> layers = four_layers();
  const StepTime step =
      predict_step(measured_step(), {.layers = layers, .num_experts = 8, .experts_per_token = 3,
                                     .router_ns = 20})
          .value();
  EXPECT_DOUBLE_EQ(step.of(StepPart::kAttention), 1 + 100 + 100);
  EXPECT_DOUBLE_EQ(step.of(StepPart::kIndexing), 10);
  EXPECT_DOUBLE_EQ(step.of(StepPart::kEmbedding), 5);
  EXPECT_DOUBLE_EQ(step.of(StepPart::kHead), 7);
  // One row has three experts, with one row each.
  EXPECT_NEAR(step.of(StepPart::kExperts), 4 * (20 + 3 * 1000), 1e-9);
  EXPECT_NEAR(step.total_ns(), 201 + 10 + 5 + 7 + 4 * 3020, 1e-9);
}

TEST(PredictStep, ExpertsOfManyRowsCostByTheRowsThatEachHas) {
  MeasuredStep measured = measured_step();
  measured.num_rows = 2;
  const std::vector<LayerInfo> layers(1);
  const StepTime step =
      predict_step(measured, {.layers = layers, .num_experts = 4, .experts_per_token = 1}).value();
  // Two rows meet at one expert with the chance 1/4; else they are at two.
  EXPECT_NEAR(step.of(StepPart::kExperts), 0.25 * 1500 + 0.75 * 2 * 1000, 1e-9);
}

TEST(PredictStep, NamesTheKindsThatWereNotMeasured) {
  MeasuredStep measured = measured_step();
  measured.layers.erase("ratio 2 reader");
  const std::vector<LayerInfo> layers = four_layers();
  const Result<StepTime> step =
      predict_step(measured, {.layers = layers, .num_experts = 8, .experts_per_token = 3});
  ASSERT_FALSE(step.has_value());
  EXPECT_EQ(step.error().message, "not measured: ratio 2 reader (2 layers)");
}

TEST(ExpectedExperts, AreAllExpertsAndTakeAllRows) {
  for (const auto& [experts, per_token, rows] :
       {std::tuple{384, 6, 1}, {384, 6, 16}, {384, 6, 2048}, {16, 6, 2048}, {4, 4, 9}}) {
    const std::vector<double> expected = expected_experts(experts, per_token, rows);
    double sum = 0, pairs = 0;
    for (size_t r = 0; r < expected.size(); ++r) {
      sum += expected[r];
      pairs += expected[r] * double(r);
    }
    EXPECT_NEAR(sum, experts, 1e-6) << experts << " " << rows;
    EXPECT_NEAR(pairs, double(rows) * per_token, 1e-5) << experts << " " << rows;
  }
}

TEST(ExpertTime, LiesOnTheLineBetweenMeasurementsAndBeyondThem) {
  const std::vector<ExpertTime> measured = {{1, 10}, {2, 12}, {4, 20}, {8, 60}};
  EXPECT_DOUBLE_EQ(expert_ns(measured, 1), 10);
  EXPECT_DOUBLE_EQ(expert_ns(measured, 3), 16);
  EXPECT_DOUBLE_EQ(expert_ns(measured, 8), 60);
  EXPECT_DOUBLE_EQ(expert_ns(measured, 10), 80);
}

TEST(LayerKind, TheReleaseHasEightAndEightLayersHaveThemAll) {
  const ModelConfig release = named_shape("v4.1");
  std::map<std::string, int> kinds, chosen;
  for (const LayerInfo& layer : layer_map(release)) ++kinds[layer_kind(layer)];
  EXPECT_THAT(kinds, testing::ElementsAre(
                         std::pair("ratio 1 index among candidates", 4),
                         std::pair("ratio 1 reader", 15),
                         std::pair("ratio 1 source of candidates", 1),
                         std::pair("ratio 2 reader", 15), std::pair("ratio 2 source", 2),
                         std::pair("ratio 2 source + engram", 1), std::pair("window", 1),
                         std::pair("window + engram", 1)));
  for (const size_t l : {0, 1, 2, 3, 14, 20, 21, 24}) {
    ++chosen[layer_kind(layer_map(release)[l])];
  }
  EXPECT_EQ(chosen.size(), kinds.size());
}

TEST(StepParts, EveryProductOfTheReleaseHasAPartOfItsOwn) {
  for (const OperationCost& cost : decode_costs(named_shape("v4.1"), 8192)) {
    const std::string_view name = cost.operation;
    if (name == "hyper_connection" || name == "indexer.score" || name == "embed") continue;
    EXPECT_NE(part_of(name == "attention" ? name : "matmul", name), StepPart::kRest) << name;
  }
  EXPECT_EQ(part_of("index_scores", ""), StepPart::kIndexing);
  EXPECT_EQ(part_of("hc_expand", ""), StepPart::kHyperConnections);
  EXPECT_EQ(part_of("rope", ""), StepPart::kRest);
}

TEST(StepWork, OfOneSequenceIsThatOfTheDecodeStep) {
  const ModelConfig release = named_shape("v4.1");
  const OperationCost step = total(decode_costs(release, 8192));
  const StepWork work = step_work(release, 1, 1, 8192);
  EXPECT_NEAR(work.bytes, step.weight_bytes + step.state_bytes, 1);
  EXPECT_NEAR(work.flops, step.flops, 1);
}

TEST(StepWork, OfManySequencesSharesTheWeightsButForExpertsAndState) {
  const ModelConfig release = named_shape("v4.1");
  const StepWork one = step_work(release, 1, 1, 0), many = step_work(release, 100'000, 1, 0);
  EXPECT_NEAR(many.flops / one.flops, 100'000, 1e-3);
  double experts = 0;
  for (const OperationCost& cost : decode_costs(release, 0)) {
    if (cost.operation == "ffn.experts") experts = cost.weight_bytes;
  }
  const double per_row = (many.bytes - (one.bytes - experts) - experts / 6 * 384) / 100'000;
  EXPECT_GT(per_row, 0);
  EXPECT_LT(per_row, 100'000) << "rows of tables and state only";
}

}  // namespace
}  // namespace millrace
