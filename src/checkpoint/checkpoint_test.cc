#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/format.h"
#include "checkpoint/expert_source.h"
#include "checkpoint/safetensors.h"
#include "model_config/engram_constants.h"
#include "sys/file.h"

namespace millrace {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kToy = MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41";
const std::string kNano = MILLRACE_SOURCE_DIR "/models/nano";

class TempFolder {
 public:
  TempFolder() {
    std::string name = testing::TempDir() + "millrace-checkpoint-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempFolder() { fs::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(std::string_view name) const { return format(path_, "/", name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Tensors with their bytes, to be changed and written as a checkpoint.
struct OwnedTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

// The toy's config with one layer of each kind and tiny sizes, and zero weights for it.
struct SmallModel {
  json::object config;
  std::vector<std::vector<OwnedTensor>> shards{2};
  json::object weight_map;
  int64_t total_size = 0;

  SmallModel() {
    config = json::parse(read_file(kToy + "/config.json").value()).as_object();
    json::object& text = config["text_config"].as_object();
    text["num_hidden_layers"] = 3;
    text["compress_ratios"] = {0, 2, 1};
    text["kv_source_layer_ids"] = {1, 2};
    text["index_source_layer_ids"] = {1, 2};
    text["candidate_source_layer_id"] = 2;
    text["engram_layer_ids"] = json::array{1};
    text["engram_num_embeddings"] = json::array{630};
    text["dspark_target_layer_ids"] = {1, 2};
    text["n_routed_experts"] = 2;
    text["dspark_n_routed_experts"] = 2;
    const ModelConfig parsed = parse_model_config(std::string(json::serialize(config))).value();
    const std::vector<TensorSpec> specs = tensor_list(parsed);
    for (size_t i = 0; i < specs.size(); ++i) {
      const TensorSpec& spec = specs[i];
      const size_t shard = i < specs.size() / 2 ? 0 : 1;
      shards[shard].push_back(
          {spec.name, spec.dtype, spec.shape, std::vector<uint8_t>(size_t(spec.bytes()))});
      weight_map[spec.name] = shard_name(shard);
      total_size += spec.bytes();
    }
  }

  static std::string shard_name(size_t shard) {
    return format("model-0000", shard + 1, "-of-00002.safetensors");
  }

  OwnedTensor& tensor(std::string_view name) {
    for (std::vector<OwnedTensor>& shard : shards) {
      for (OwnedTensor& t : shard) {
        if (t.name == name) return t;
      }
    }
    MR_CHECK(false);
    std::abort();
  }

  // Returns the removed tensor.
  OwnedTensor remove(std::string_view name) {
    OwnedTensor removed = tensor(name);
    for (std::vector<OwnedTensor>& shard : shards) {
      std::erase_if(shard, [&](const OwnedTensor& t) { return t.name == name; });
    }
    return removed;
  }

  void write(const TempFolder& folder, bool with_index) const {
    ASSERT_TRUE(write_file(folder / "config.json", std::string(json::serialize(config))).ok());
    for (size_t shard = 0; shard < shards.size(); ++shard) {
      std::vector<TensorHeader> tensors;
      for (const OwnedTensor& t : shards[shard]) {
        tensors.push_back({t.name, t.dtype, t.shape});
      }
      std::string file = safetensors_header(tensors);
      for (const OwnedTensor& t : shards[shard]) {
        file.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
      }
      ASSERT_TRUE(write_file(folder / shard_name(shard), file).ok());
    }
    if (!with_index) return;
    const json::object index = {{"metadata", {{"total_size", total_size}}},
                                {"weight_map", weight_map}};
    ASSERT_TRUE(
        write_file(folder / "model.safetensors.index.json", std::string(json::serialize(index)))
            .ok());
  }
};

Checkpoint open_checked(const std::string& folder) {
  Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (!checkpoint.has_value()) ADD_FAILURE() << checkpoint.error().message;
  return std::move(checkpoint.value());
}

std::string open_message(const TempFolder& folder) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.path());
  return checkpoint.has_value() ? "accepted" : checkpoint.error().message;
}

TEST(Checkpoint, OpensTheToyAndNano) {
  for (const std::string& folder : {kToy, kNano}) {
    std::vector<std::pair<int64_t, int64_t>> progress;
    const Result<Checkpoint> checkpoint = Checkpoint::open(
        folder, [&](int64_t done, int64_t all) { progress.emplace_back(done, all); });
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint.value().shards().size(), 2u);
    EXPECT_EQ(progress, (std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 2}}));
  }
}

TEST(Checkpoint, LooksTensorsUpWithTheirShapes) {
  const Checkpoint checkpoint = open_checked(kToy);
  const Fp8Matrix wkv = checkpoint.fp8_matrix("layers.1.engram.wkv").value();
  EXPECT_EQ(wkv.n, 128 * 5);
  EXPECT_EQ(wkv.k, 6 * 32);
  const Fp4Matrix w2 = checkpoint.fp4_matrix("layers.3.ffn.experts.7.w2").value();
  EXPECT_EQ(w2.n, 128);
  EXPECT_EQ(w2.k, 64);
  const Fp8Table table = checkpoint.fp8_table("layers.2.engram.embed").value();
  EXPECT_EQ(table.rows, 834);
  EXPECT_EQ(table.width, 32);
  EXPECT_EQ(checkpoint.bf16_matrix("embed.weight").value().n, 512);
  EXPECT_EQ(checkpoint.f32_matrix("layers.0.hc_attn_fn").value().k, 4 * 128);
  EXPECT_EQ(checkpoint.bf16_vector("norm.weight").value().size(), 128u);
  EXPECT_EQ(checkpoint.f32_vector("mtp.1.ffn.gate.bias").value().size(), 4u);
}

TEST(Checkpoint, ValuesAreThoseOfTheFile) {
  SmallModel model;
  OwnedTensor& codes = model.tensor("layers.0.attn.wq_a.weight");
  codes.bytes[5] = 0x38;
  model.tensor("layers.0.attn.wq_a.scale").bytes[1] = 127;
  OwnedTensor& norm = model.tensor("norm.weight");
  norm.bytes[2] = 0x80;
  norm.bytes[3] = 0x3f;
  TempFolder folder;
  model.write(folder, /*with_index=*/true);
  const Checkpoint checkpoint = open_checked(folder.path());
  const Fp8Matrix wq_a = checkpoint.fp8_matrix("layers.0.attn.wq_a").value();
  EXPECT_EQ(wq_a.codes[4], 0);
  EXPECT_EQ(wq_a.codes[5], 0x38);
  EXPECT_EQ(wq_a.scales[1], 127);
  EXPECT_EQ(to_float(checkpoint.bf16_vector("norm.weight").value()[1]), 1.0f);
}

TEST(Checkpoint, LookUpsNameWhatIsWrong) {
  const Checkpoint checkpoint = open_checked(kToy);
  EXPECT_EQ(checkpoint.bf16_matrix("nothing").error().code, Code::kNotFound);
  EXPECT_EQ(checkpoint.bf16_matrix("nothing").error().message,
            "tensor nothing: the checkpoint has none");
  EXPECT_EQ(checkpoint.f32_vector("norm.weight").error().message,
            "tensor norm.weight: found BF16 [128], expected F32 of 1 dimensions");
  EXPECT_EQ(checkpoint.bf16_matrix("norm.weight").error().message,
            "tensor norm.weight: found BF16 [128], expected BF16 of 2 dimensions");
  EXPECT_EQ(checkpoint.fp8_matrix("layers.0.ffn.experts.0.w1").error().message,
            "tensor layers.0.ffn.experts.0.w1.weight: found I8 [64, 64], "
            "expected F8_E4M3 of 2 dimensions");
  EXPECT_EQ(checkpoint.fp8_matrix("layers.1.engram.embed").error().message,
            "tensor layers.1.engram.embed.scale: found [630, 1], expected [20, 1]");
}

TEST(Checkpoint, MisalignedTensorsAreCopiedSoThatTheyCanBeRead) {
  SmallModel model;
  // An odd number of scale bytes in front of everything else.
  OwnedTensor odd = model.remove("layers.1.engram.embed.scale");
  OwnedTensor& bias = model.tensor("layers.0.ffn.gate.bias");
  const float values[] = {1.5f, -2.25f};
  std::memcpy(bias.bytes.data(), values, sizeof values);
  ASSERT_EQ(odd.bytes.size() % 4, 2u);
  model.shards[0].insert(model.shards[0].begin(), odd);
  TempFolder folder;
  model.write(folder, /*with_index=*/false);

  const Checkpoint checkpoint = open_checked(folder.path());
  EXPECT_GT(checkpoint.copied_bytes(), 0);
  const std::span<const float> read = checkpoint.f32_vector("layers.0.ffn.gate.bias").value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(read.data()) % alignof(float), 0u);
  EXPECT_EQ(read[0], 1.5f);
  EXPECT_EQ(read[1], -2.25f);
}

TEST(Checkpoint, AlignedTensorsAreNotCopied) { EXPECT_EQ(open_checked(kNano).copied_bytes(), 0); }

TEST(Checkpoint, OpensWithoutAnIndexAndWithCodesCalledU8) {
  SmallModel model;
  for (std::vector<OwnedTensor>& shard : model.shards) {
    for (OwnedTensor& t : shard) {
      if (t.dtype == Dtype::kI8) t.dtype = Dtype::kU8;
    }
  }
  TempFolder folder;
  model.write(folder, /*with_index=*/false);
  EXPECT_EQ(open_message(folder), "accepted");
}

TEST(Checkpoint, ReadsNothingBelowItsFolderAndNothingTheIndexDoesNotName) {
  SmallModel model;
  TempFolder folder;
  model.write(folder, /*with_index=*/true);
  ASSERT_TRUE(write_file(folder / "other.safetensors", "not a shard").ok());
  EXPECT_EQ(open_message(folder), "accepted");
  fs::remove(folder / "other.safetensors");
  fs::remove(folder / "model.safetensors.index.json");
  fs::create_directory(folder / "original");
  ASSERT_TRUE(write_file(folder / "original/x.safetensors", "not a shard").ok());
  EXPECT_EQ(open_message(folder), "accepted");
}

// One damage to a good checkpoint and the refusal it must cause.
struct Damage {
  const char* what;
  void (*damage)(SmallModel&);
  bool with_index;
  const char* message;
};

class Refuses : public testing::TestWithParam<Damage> {};

TEST_P(Refuses, NamingFileTensorFoundAndExpected) {
  SmallModel model;
  GetParam().damage(model);
  TempFolder folder;
  model.write(folder, GetParam().with_index);
  const std::string message = open_message(folder);
  EXPECT_THAT(message, HasSubstr(GetParam().message)) << GetParam().what;
  EXPECT_THAT(message, StartsWith(folder.path())) << GetParam().what;
  EXPECT_THAT(message, AllOf(HasSubstr(": found "), HasSubstr(", expected ")))
      << GetParam().what;
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, Refuses,
    testing::Values(
        Damage{"a config of another model", [](SmallModel& m) { m.config["model_type"] = "llama"; },
               true, "config.json: model_type: found \"llama\", expected deepseek_v41"},
        Damage{"a missing tensor", [](SmallModel& m) { m.remove("norm.weight"); }, false,
               "tensor norm.weight: found in no file, expected BF16 [128]"},
        Damage{"missing tensors",
               [](SmallModel& m) {
                 m.remove("norm.weight");
                 m.remove("head.weight");
                 m.remove("mtp.1.norm.weight");
               },
               false,
               "tensor head.weight: found in no file, expected BF16 [512, 128] (2 more are "
               "missing)"},
        Damage{"a tensor of no known name",
               [](SmallModel& m) {
                 m.shards[1].push_back({"layers.0.attn.bias", Dtype::kF32, {1}, {0, 0, 0, 0}});
               },
               false,
               "model-00002-of-00002.safetensors: tensor layers.0.attn.bias: found F32 [1], "
               "expected no tensor of this name"},
        Damage{"a tensor twice",
               [](SmallModel& m) { m.shards[1].push_back(m.tensor("embed.weight")); }, false,
               "tensor embed.weight: found again, expected only in model-00001"},
        Damage{"a wrong dtype", [](SmallModel& m) { m.tensor("embed.weight").dtype = Dtype::kF16; },
               true, "tensor embed.weight: found F16 [512, 128], expected BF16 [512, 128]"},
        Damage{"codes of fp8 called U8",
               [](SmallModel& m) { m.tensor("layers.0.attn.wkv.weight").dtype = Dtype::kU8; }, true,
               "layers.0.attn.wkv.weight: found U8 [64, 128], expected F8_E4M3 [64, 128]"},
        Damage{"a transposed tensor",
               [](SmallModel& m) {
                 std::swap(m.tensor("layers.1.ffn.experts.0.w2.weight").shape[0],
                           m.tensor("layers.1.ffn.experts.0.w2.weight").shape[1]);
               },
               true, "layers.1.ffn.experts.0.w2.weight: found I8 [32, 128], expected I8 [128, 32]"},
        Damage{"scales of blocks of 128",
               [](SmallModel& m) {
                 OwnedTensor& t = m.tensor("layers.0.attn.wq_a.scale");
                 t.shape = {1, 1};
                 t.bytes.resize(1);
               },
               true, "layers.0.attn.wq_a.scale: found F8_E8M0 [1, 1], expected F8_E8M0 [2, 4]"},
        Damage{"scales of one per row for a dense matrix",
               [](SmallModel& m) {
                 OwnedTensor& t = m.tensor("layers.0.attn.wq_a.scale");
                 t.shape = {64, 4};
                 t.bytes.resize(64 * 4);
               },
               true, "layers.0.attn.wq_a.scale: found F8_E8M0 [64, 4], expected F8_E8M0 [2, 4]"},
        Damage{"scales of an expert per block",
               [](SmallModel& m) {
                 OwnedTensor& t = m.tensor("layers.1.ffn.experts.0.w1.scale");
                 t.shape = {2, 4};
                 t.bytes.resize(2 * 4);
               },
               true, "experts.0.w1.scale: found F8_E8M0 [2, 4], expected F8_E8M0 [64, 4]"},
        Damage{"scales as numbers",
               [](SmallModel& m) {
                 OwnedTensor& t = m.tensor("layers.0.attn.wq_a.scale");
                 t.dtype = Dtype::kF32;
                 t.bytes.resize(2 * 4 * 4);
               },
               true, "layers.0.attn.wq_a.scale: found F32 [2, 4], expected F8_E8M0 [2, 4]"},
        Damage{"missing scales", [](SmallModel& m) { m.remove("layers.0.attn.wq_a.scale"); }, false,
               "tensor layers.0.attn.wq_a.scale: found in no file, expected F8_E8M0 [2, 4]"},
        Damage{"an expert more than the config says",
               [](SmallModel& m) {
                 OwnedTensor t = m.tensor("layers.0.ffn.experts.1.w1.weight");
                 t.name = "layers.0.ffn.experts.2.w1.weight";
                 m.shards[1].push_back(t);
               },
               false, "tensor layers.0.ffn.experts.2.w1.weight: found I8 [64, 64], expected no"},
        Damage{"a table row too few",
               [](SmallModel& m) {
                 OwnedTensor& t = m.tensor("layers.1.engram.embed.weight");
                 --t.shape[0];
                 t.bytes.resize(size_t(t.shape[0] * t.shape[1]));
               },
               true, "engram.embed.weight: found F8_E4M3 [629, 32], expected F8_E4M3 [630, 32]"},
        Damage{"an empty tensor",
               [](SmallModel& m) {
                 m.tensor("norm.weight").shape = {0};
                 m.tensor("norm.weight").bytes.clear();
               },
               true, "tensor norm.weight: found BF16 [0], expected BF16 [128]"},
        Damage{"a tensor of no dimensions",
               [](SmallModel& m) {
                 m.tensor("norm.weight").shape = {};
                 m.tensor("norm.weight").bytes.resize(2);
               },
               true, "tensor norm.weight: found BF16 [], expected BF16 [128]"},
        Damage{"a tensor of another rank",
               [](SmallModel& m) {
                 m.tensor("norm.weight").shape = {1, 128};
               },
               true, "norm.weight: found BF16 [1, 128], expected BF16 [128]"},
        // Indexes that lie.
        Damage{"a tensor in the other file",
               [](SmallModel& m) { m.weight_map["norm.weight"] = SmallModel::shard_name(1); }, true,
               "index.json: tensor norm.weight: found in model-00001-of-00002.safetensors, "
               "expected in model-00002-of-00002.safetensors"},
        Damage{"a name that no file holds", [](SmallModel& m) { m.remove("norm.weight"); }, true,
               "index.json: tensor norm.weight: found in no file, expected in model-00001"},
        Damage{"a name unknown to the config",
               [](SmallModel& m) { m.weight_map["extra"] = SmallModel::shard_name(0); }, true,
               "index.json: tensor extra: found in the index, expected no tensor"},
        Damage{"a tensor left out", [](SmallModel& m) { m.weight_map.erase("norm.weight"); }, true,
               "index.json: tensor norm.weight: found in model-00001-of-00002.safetensors, "
               "expected it in the index too"},
        Damage{"a wrong total", [](SmallModel& m) { ++m.total_size; }, true,
               "index.json: metadata.total_size: found "},
        Damage{"a file in another folder",
               [](SmallModel& m) { m.weight_map["norm.weight"] = "../x.safetensors"; }, true,
               "tensor norm.weight: found file \"../x.safetensors\", expected the name of a file"},
        Damage{"a file by its whole path",
               [](SmallModel& m) { m.weight_map["norm.weight"] = "/x.safetensors"; }, true,
               "tensor norm.weight: found file \"/x.safetensors\", expected the name of a file"},
        Damage{"no file", [](SmallModel& m) { m.weight_map["norm.weight"] = ""; }, true,
               "tensor norm.weight: found file \"\", expected the name of a file"},
        Damage{"a name with a zero byte",
               [](SmallModel& m) {
                 m.weight_map["norm.weight"] = json::string_view("a\0b", 3);
               },
               true, "tensor norm.weight: found file \"a"},
        Damage{"a total of nothing", [](SmallModel& m) { m.total_size = 0; }, true,
               "index.json: metadata.total_size: found 0, expected "},
        Damage{"one tensor in two files, one of them named",
               [](SmallModel& m) { m.shards[1].push_back(m.tensor("embed.weight")); }, true,
               "tensor embed.weight: found again, expected only in model-00001"},
        Damage{"the folder above", [](SmallModel& m) { m.weight_map["norm.weight"] = ".."; }, true,
               "found file \"..\", expected the name of a file"},
        Damage{"a folder as file", [](SmallModel& m) { m.weight_map["norm.weight"] = "."; }, true,
               "found file \".\""}));

// Damage to the files of a good checkpoint.
struct FileDamage {
  const char* what;
  void (*damage)(const TempFolder&);
  const char* message;  // what follows the folder's name
};

std::string first_shard(const TempFolder& folder) { return folder / SmallModel::shard_name(0); }

void change(const std::string& path, size_t at, std::string_view bytes) {
  std::string content = read_file(path).value();
  content.replace(at, bytes.size(), bytes);
  ASSERT_TRUE(write_file(path, content).ok());
}

void replace_by(const std::string& path, std::string_view content) {
  ASSERT_TRUE(write_file(path, content).ok());
}

void replace_by_folder(const std::string& path) {
  fs::remove(path);
  fs::create_directory(path);
}

class RefusesFiles : public testing::TestWithParam<FileDamage> {};

TEST_P(RefusesFiles, NamingTheFileAndWhatIsWrong) {
  SmallModel model;
  TempFolder folder;
  model.write(folder, /*with_index=*/true);
  GetParam().damage(folder);
  EXPECT_THAT(open_message(folder), StartsWith(folder / GetParam().message)) << GetParam().what;
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, RefusesFiles,
    testing::Values(
        FileDamage{"no config", [](const TempFolder& f) { fs::remove(f / "config.json"); },
                   "config.json: cannot open: No such file or directory"},
        FileDamage{"an empty config",
                   [](const TempFolder& f) { replace_by(f / "config.json", ""); },
                   "config.json: found incomplete JSON at byte 0, expected JSON"},
        FileDamage{"a folder as config",
                   [](const TempFolder& f) { replace_by_folder(f / "config.json"); },
                   "config.json: not a regular file"},
        FileDamage{"a config that is not UTF-8",
                   [](const TempFolder& f) { replace_by(f / "config.json", "{\"a\": \"\xff\"}"); },
                   "config.json: found syntax error at byte 7, expected JSON"},
        FileDamage{"a config with a byte order mark",
                   [](const TempFolder& f) { replace_by(f / "config.json", "\xef\xbb\xbf{}"); },
                   "config.json: found syntax error at byte 0, expected JSON"},
        FileDamage{"a config that is a shard",
                   [](const TempFolder& f) {
                     fs::remove(f / "config.json");
                     fs::copy(first_shard(f), f / "config.json");
                   },
                   "config.json: found syntax error at byte 0, expected JSON"},
        FileDamage{
            "a config of gigabytes",
            [](const TempFolder& f) { fs::resize_file(f / "config.json", uintmax_t{1} << 32); },
            "config.json: 4294967296 bytes, expected at most 1048576"},
        FileDamage{"a config with a key twice",
                   [](const TempFolder& f) {
                     replace_by(f / "config.json", R"({"model_type": "a", "model_type": "b"})");
                   },
                   "config.json: model_type: found again at byte 31, expected each key once"},
        FileDamage{"an index that is empty",
                   [](const TempFolder& f) { replace_by(f / "model.safetensors.index.json", ""); },
                   "model.safetensors.index.json: found incomplete JSON at byte 0, expected JSON"},
        FileDamage{"an index without files",
                   [](const TempFolder& f) {
                     replace_by(f / "model.safetensors.index.json", R"({"weight_map": {}})");
                   },
                   "model.safetensors.index.json: weight_map: found {}, expected the tensors' "
                   "files"},
        FileDamage{
            "a folder as index",
            [](const TempFolder& f) { replace_by_folder(f / "model.safetensors.index.json"); },
            "model.safetensors.index.json: not a regular file"},
        FileDamage{"an index that links to nothing",
                   [](const TempFolder& f) {
                     fs::remove(f / "model.safetensors.index.json");
                     fs::create_symlink("gone", f / "model.safetensors.index.json");
                   },
                   "model.safetensors.index.json: cannot open: No such file or directory"},
        FileDamage{"an index of gigabytes",
                   [](const TempFolder& f) {
                     fs::resize_file(f / "model.safetensors.index.json", uintmax_t{1} << 32);
                   },
                   "model.safetensors.index.json: 4294967296 bytes, expected at most 33554432"},
        FileDamage{"a shard of the index that is missing",
                   [](const TempFolder& f) { fs::remove(first_shard(f)); },
                   "model-00001-of-00002.safetensors: cannot open: No such file or directory"},
        FileDamage{"a folder as shard",
                   [](const TempFolder& f) { replace_by_folder(first_shard(f)); },
                   "model-00001-of-00002.safetensors: not a regular file"},
        FileDamage{"an empty shard", [](const TempFolder& f) { replace_by(first_shard(f), ""); },
                   "model-00001-of-00002.safetensors: found 0 bytes, expected at least 8"},
        FileDamage{"a shard that links to nothing, without an index",
                   [](const TempFolder& f) {
                     fs::remove(f / "model.safetensors.index.json");
                     fs::create_symlink("gone", f / "model-3.safetensors");
                   },
                   "model-3.safetensors: cannot open: No such file or directory"},
        FileDamage{"a shard cut by one byte",
                   [](const TempFolder& f) {
                     fs::resize_file(first_shard(f), fs::file_size(first_shard(f)) - 1);
                   },
                   "model-00001-of-00002.safetensors: found "},
        FileDamage{"a shard cut within its header",
                   [](const TempFolder& f) { fs::resize_file(first_shard(f), 100); },
                   "model-00001-of-00002.safetensors: header length: found "},
        FileDamage{"a shard cut within its length",
                   [](const TempFolder& f) { fs::resize_file(first_shard(f), 7); },
                   "model-00001-of-00002.safetensors: found 7 bytes, expected at least 8"},
        FileDamage{"sixteen bytes too many",
                   [](const TempFolder& f) {
                     fs::resize_file(first_shard(f), fs::file_size(first_shard(f)) + 16);
                   },
                   "model-00001-of-00002.safetensors: found "},
        FileDamage{"a header length of zero",
                   [](const TempFolder& f) {
                     change(first_shard(f), 0, std::string_view("\0\0\0\0\0\0\0\0", 8));
                   },
                   "model-00001-of-00002.safetensors: header: found incomplete JSON at byte 0"},
        FileDamage{"a header length of 2^64 - 1",
                   [](const TempFolder& f) {
                     change(first_shard(f), 0, "\xff\xff\xff\xff\xff\xff\xff\xff");
                   },
                   "model-00001-of-00002.safetensors: header length: found 18446744073709551615, "
                   "expected at most 100000000"},
        FileDamage{"a header length in the other byte order",
                   [](const TempFolder& f) {
                     change(first_shard(f), 0, std::string_view("\0\0\0\0\0\0\x10\0", 8));
                   },
                   "model-00001-of-00002.safetensors: header length: found 4503599627370496, "
                   "expected at most 100000000"},
        FileDamage{"a page of text instead of a shard",
                   [](const TempFolder& f) {
                     replace_by(first_shard(f), "version https://git-lfs.github.com/spec/v1\n");
                   },
                   "model-00001-of-00002.safetensors: header length: found "}));

TEST(Checkpoint, RefusesAFolderWithoutShards) {
  TempFolder folder;
  SmallModel model;
  model.shards.clear();
  model.write(folder, /*with_index=*/false);
  EXPECT_EQ(open_message(folder), folder.path() + ": found no file *.safetensors, expected the "
                                                  "shards of the checkpoint");
}

// No memory is taken for what a file only claims to hold.
TEST(Checkpoint, ASmallFileThatClaimsToBeLargeCostsNothing) {
  SmallModel model;
  TempFolder folder;
  model.write(folder, /*with_index=*/false);
  const std::string header =
      R"({"norm.weight":{"dtype":"BF16","shape":[4611686018427387000],)"
      R"("data_offsets":[0,9223372036854774000]}})";
  std::string file(8, '\0');
  file[0] = char(header.size());
  replace_by(folder / SmallModel::shard_name(0), file + header);
  EXPECT_THAT(open_message(folder),
              HasSubstr("found 0 bytes behind the header, expected 9223372036854774000, where its "
                        "last tensor norm.weight ends"));
}

// The files are all holes behind their headers: half a terabyte that occupies a few megabytes.
TEST(Checkpoint, OpensACheckpointOfTheReleasedSize) {
  const std::string config_text =
      read_file(MILLRACE_SOURCE_DIR "/tests/golden/config-v4.1-flash.json").value();
  const std::vector<TensorSpec> specs = tensor_list(parse_model_config(config_text).value());
  TempFolder folder;
  ASSERT_TRUE(write_file(folder / "config.json", config_text).ok());
  json::object weight_map;
  constexpr size_t kShards = 48;
  for (size_t shard = 0; shard < kShards; ++shard) {
    const std::string name = format("model-", shard, ".safetensors");
    std::vector<TensorHeader> tensors;
    uint64_t data_bytes = 0;
    for (size_t i = specs.size() * shard / kShards; i < specs.size() * (shard + 1) / kShards; ++i) {
      const TensorSpec& spec = specs[i];
      tensors.push_back({spec.name, spec.dtype, spec.shape});
      data_bytes += uint64_t(spec.bytes());
      weight_map[spec.name] = name;
    }
    const std::string header = safetensors_header(tensors);
    ASSERT_TRUE(write_file(folder / name, header).ok());
    fs::resize_file(folder / name, header.size() + data_bytes);
  }
  const json::object index = {{"metadata", {{"total_size", 510'286'023'000}}},
                              {"weight_map", std::move(weight_map)}};
  ASSERT_TRUE(
      write_file(folder / "model.safetensors.index.json", std::string(json::serialize(index)))
          .ok());

  Result<Checkpoint> checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint.value().tensors().size(), 96'085u);
  EXPECT_EQ(checkpoint.value().copied_bytes(), 0);
  EXPECT_EQ(checkpoint.value().fp8_table("layers.14.engram.embed").value().rows, 384'016'682);
  MappedExpertSource source =
      MappedExpertSource::open(checkpoint.value().config(), checkpoint.value()).value();
  const int32_t last[] = {127};
  ExpertLease lease = source.acquire(42, last);
  EXPECT_EQ(lease.next().value()[0].weights->w1.codes,
            checkpoint.value().fp4_matrix("mtp.2.ffn.experts.127.w1").value().codes);
}

TEST(MappedExpertSource, LeasesTheExpertsOfBackboneLayersAndDraftStages) {
  const Checkpoint checkpoint = open_checked(kToy);
  MappedExpertSource source = MappedExpertSource::open(checkpoint.config(), checkpoint).value();
  const int32_t ids[] = {3, 0};
  {
    ExpertLease lease = source.acquire(2, ids);
    const std::span<const LoadedExpert> experts = lease.next().value();
    ASSERT_EQ(experts.size(), 2u);
    EXPECT_EQ(experts[0].idx, 0);
    EXPECT_EQ(experts[0].weights->w2.codes,
              checkpoint.fp4_matrix("layers.2.ffn.experts.3.w2").value().codes);
    EXPECT_EQ(experts[1].idx, 1);
    EXPECT_EQ(experts[1].weights->w1.n, 64);
    EXPECT_EQ(experts[1].weights->w3.k, 128);
    EXPECT_TRUE(lease.next().value().empty());
  }
  ExpertLease draft = source.acquire(8 + 1, ids);
  EXPECT_EQ(draft.next().value()[0].weights->w1.codes,
            checkpoint.fp4_matrix("mtp.1.ffn.experts.3.w1").value().codes);
}

TEST(MappedExpertSourceDeathTest, AnExpertOutOfRangeStopsTheProgram) {
  const Checkpoint checkpoint = open_checked(kToy);
  MappedExpertSource source = MappedExpertSource::open(checkpoint.config(), checkpoint).value();
  const int32_t beyond[] = {8};
  EXPECT_DEATH((void)source.acquire(0, beyond), "check failed: id <");
  EXPECT_DEATH((void)source.acquire(10, {}), "check failed: layer <");
  const ExpertLease lease = source.acquire(0, {});
  EXPECT_DEATH((void)source.acquire(0, {}), "check failed: !is_leased_");
}

TEST(EngramRows, EqualTheGoldenRowsOfTheToy) {
  const Result<MappedFile> mapped =
      MappedFile::open(MILLRACE_SOURCE_DIR "/tests/golden/tiny-v41.golden.safetensors");
  const MappedFile& file = mapped.value();
  std::map<std::string, TensorEntry> entries;
  const Result<std::vector<TensorEntry>> header = parse_safetensors(file.bytes(), file.path());
  for (const TensorEntry& e : header.value()) entries.emplace(e.name, e);
  const auto integers = [&](const std::string& name) {
    const TensorEntry& e = entries.at(name);
    const size_t width = size_t(dtype_bytes(e.dtype));
    std::vector<int64_t> values((e.end - e.begin) / width, 0);
    for (size_t i = 0; i < values.size(); ++i) {  // little-endian and not negative
      std::memcpy(&values[i], file.bytes().data() + e.begin + i * width, width);
    }
    return values;
  };
  const std::vector<int64_t> token_map = integers("token_map");
  const std::vector<int64_t> tokens = integers("reference.medium.token_ids");
  const std::vector<int64_t> golden = integers("medium.engram_rows");
  const ModelConfig config = parse_model_config(read_file(kToy + "/config.json").value()).value();
  const std::vector<EngramTable> tables = engram_tables(config);
  ASSERT_EQ(golden.size(), tables.size() * tokens.size() * 6);

  std::vector<int64_t> rows;
  for (const EngramTable& table : tables) {
    std::vector<int32_t> window;
    for (const int64_t token : tokens) {
      const bool is_image = token == config.image_token_id;
      window.insert(window.begin(), is_image ? kEngramDead : int32_t(token_map[size_t(token)]));
      std::vector<int64_t> at_token(6);
      engram_rows(table, token_map[size_t(config.engram_pad_token_id)], window, at_token);
      rows.insert(rows.end(), at_token.begin(), at_token.end());
    }
  }
  EXPECT_EQ(rows, golden);
}

}  // namespace
}  // namespace millrace
