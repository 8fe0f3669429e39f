#include "checkpoint/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/format.h"
#include "checkpoint/checkpoint.h"
#include "sys/file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

const std::string kToy = MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41";

ModelConfig config_of(const std::string& path) {
  return parse_model_config(read_file(path).value()).value();
}

class CheckpointWriterTest : public ::testing::Test {
 protected:
  CheckpointWriterTest() {
    std::string name = testing::TempDir() + "millrace-writer-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~CheckpointWriterTest() override { fs::remove_all(folder_); }

  int64_t num_files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  std::string folder_;
  ModelConfig config_ = config_of(kToy + "/config.json");
};

TEST_F(CheckpointWriterTest, EveryTensorIsInOneShardAndNoShardIsEmpty) {
  const std::vector<TensorSpec> tensors = tensor_list(config_);
  for (const int64_t num_shards : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{5}, int64_t{48},
                                   int64_t(tensors.size()) - 1, int64_t(tensors.size())}) {
    const std::vector<Shard> shards = plan_shards(config_, num_shards);
    EXPECT_EQ(int64_t(shards.size()), num_shards);
    std::set<std::string> names;
    for (const Shard& shard : shards) {
      EXPECT_FALSE(shard.tensors.empty()) << num_shards;
      for (const TensorSpec& tensor : shard.tensors) names.insert(tensor.name);
    }
    EXPECT_EQ(names.size(), tensors.size()) << num_shards;
  }
  EXPECT_EQ(plan_shards(config_, 48)[1].file_name, "model-00002-of-00048.safetensors");
}

TEST_F(CheckpointWriterTest, InTheReleasesLayoutDraftStagesAndEngramTablesStandApartAtTheEnd) {
  const ModelConfig release = config_of(MILLRACE_SOURCE_DIR "/tests/golden/config-v4.1-flash.json");
  const std::vector<Shard> shards = plan_shards(release, 48);
  const auto only = [&](size_t shard, std::string_view prefix) {
    for (const TensorSpec& t : shards[shard].tensors)
      EXPECT_TRUE(t.name.starts_with(prefix)) << t.name;
  };
  only(43, "mtp.0.");
  only(44, "mtp.1.");
  only(45, "mtp.2.");
  only(46, "layers.1.engram.embed.");
  only(47, "layers.14.engram.embed.");
  EXPECT_EQ(shards[47].tensors.size(), 2u);
  int64_t least = INT64_MAX, most = 0;
  for (const Shard& shard : std::span(shards).first(43)) {
    int64_t bytes = 0;
    for (const TensorSpec& t : shard.tensors) bytes += t.bytes();
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  EXPECT_LT(most, least + 1'400'000'000) << "no further apart than the largest tensor";
}

TEST_F(CheckpointWriterTest, WhatIsWrittenOpensAsACheckpointWithTheValuesOfTheCallback) {
  const std::vector<Shard> shards = plan_shards(config_, 6);
  // Every byte says which tensor it belongs to and where it lies.
  const auto byte_at = [](const TensorSpec& tensor, int64_t at) {
    return uint8_t(int64_t(tensor.name.size()) * 7 + int64_t(tensor.name[7]) + at);
  };
  int64_t last = 0;
  const Status status = write_shards(
      folder_, shards,
      [&](const TensorSpec& tensor, int64_t offset, std::span<uint8_t> bytes) {
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(tensor, offset + int64_t(i));
      },
      [&](int64_t done, int64_t all) {
        EXPECT_GT(done, last);
        EXPECT_LE(done, all);
        last = done;
        return true;
      });
  ASSERT_TRUE(status.ok()) << status.error().message;
  int64_t total = 0;
  for (const TensorSpec& tensor : tensor_list(config_)) total += tensor.bytes();
  EXPECT_EQ(last, total);
  fs::copy_file(kToy + "/config.json", folder_ + "/config.json");
  const Result<Checkpoint> opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ(opened.value().shards().size(), 6u);
  for (const TensorSpec& tensor : tensor_list(config_)) {
    if (!tensor.name.ends_with("engram.embed.weight")) continue;
    const std::string base = tensor.name.substr(0, tensor.name.rfind('.'));
    const Fp8Table table = opened.value().fp8_table(base).value();
    for (int64_t i = 0; i < tensor.bytes(); ++i) ASSERT_EQ(table.codes[i], byte_at(tensor, i)) << i;
  }
}

TEST_F(CheckpointWriterTest, WithoutValuesTensorsAreHoles) {
  const ModelConfig release = config_of(MILLRACE_SOURCE_DIR "/tests/golden/config-v4.1-flash.json");
  ASSERT_TRUE(write_shards(folder_, plan_shards(release, 48), {}).ok());
  uint64_t size = 0, on_disk = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    struct stat info;
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    size += uint64_t(info.st_size);
    on_disk += uint64_t(info.st_blocks) * 512;
  }
  EXPECT_GT(size, 510'286'023'000u);
  EXPECT_LT(on_disk, 200'000'000u);
}

TEST_F(CheckpointWriterTest, WhenItIsStoppedNothingIsLeft) {
  const std::vector<Shard> shards = plan_shards(config_, 6);
  int calls = 0;
  const Status status = write_shards(folder_, shards, {}, [&](int64_t, int64_t) {
    return ++calls < 200;  // some shards are complete by then
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kCancelled);
  EXPECT_EQ(calls, 200);
  EXPECT_EQ(num_files(), 0);
}

TEST_F(CheckpointWriterTest, ErrorsNameTheFile) {
  const Status status = write_shards(folder_ + "/none", plan_shards(config_, 2), {});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message,
              testing::HasSubstr("/none/model-00001-of-00002.safetensors: cannot create"));
}

}  // namespace
}  // namespace millrace
