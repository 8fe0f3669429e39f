#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/format.h"

namespace millrace {
namespace {

using testing::HasSubstr;

// A file with this header and `data_bytes` zero bytes behind it.
std::vector<uint8_t> file_with(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::vector<uint8_t> file(sizeof length + header.size() + data_bytes);
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, header.data(), header.size());
  return file;
}

std::string message_of(const Result<std::vector<TensorEntry>>& result) {
  return result.has_value() ? "accepted" : result.error().message;
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string header = R"({"__metadata__":{"format":"pt","note":"x\n"},)"
                             R"("b":{"dtype":"F8_E8M0","shape":[3],"data_offsets":[8,11]},)"
                             R"("a":{"shape":[2,1],"data_offsets":[0,8],"dtype":"F32"},)"
                             R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[11,13]},)"
                             R"("empty":{"dtype":"I64","shape":[4,0],"data_offsets":[11,11]}}   )";
  const Result<std::vector<TensorEntry>> result = parse_safetensors(file_with(header, 13), "f");
  ASSERT_TRUE(result.has_value()) << result.error().message;
  const std::vector<TensorEntry>& tensors = result.value();
  ASSERT_EQ(tensors.size(), 4u);
  const uint64_t data = 8 + header.size();
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, Dtype::kF32);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(tensors[0].begin, data);
  EXPECT_EQ(tensors[0].end, data + 8);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[2].name, "empty");
  EXPECT_EQ(tensors[3].name, "scalar");
  EXPECT_TRUE(tensors[3].shape.empty());
}

TEST(Safetensors, AFileMayHoldNoTensor) {
  EXPECT_TRUE(parse_safetensors(file_with("{}", 0), "f").value().empty());
}

TEST(Safetensors, NamesWithEscapesAreTheNamesTheyMean) {
  const auto file =
      file_with(R"({"a\u002eb\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  EXPECT_EQ(parse_safetensors(file, "f").value()[0].name, "a.b\"");
}

struct Damage {
  const char* header;
  size_t data_bytes;
  const char* message;
};

class RefusesHeader : public testing::TestWithParam<Damage> {};

TEST_P(RefusesHeader, NamingFileTensorFoundAndExpected) {
  const Damage& d = GetParam();
  const std::string message =
      message_of(parse_safetensors(file_with(d.header, d.data_bytes), "m.safetensors"));
  EXPECT_THAT(message, HasSubstr("m.safetensors: ")) << d.header;
  EXPECT_THAT(message, HasSubstr(d.message)) << d.header;
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, RefusesHeader,
    testing::Values(
        // The JSON itself.
        Damage{"", 0, "not JSON"}, Damage{"{", 0, "not JSON"}, Damage{"nonsense", 0, "not JSON"},
        Damage{"[]", 0, "found a list, expected an object"},
        Damage{"7", 0, "found 7, expected an object"}, Damage{"{} x", 0, "header: "},
        Damage{"{\"a\xff\":1}", 0, "not JSON"}, Damage{R"({"a":7})", 0, "a: found 7"},
        Damage{R"({"a":[[[[[[[[]]]]]]]]})", 0, "a: found a list"},
        Damage{R"({"a":{"shape":[[1]]}})", 0, "tensor a: shape: found a list"},
        Damage{R"({"a":{"shape":{"b":{"c":{}}}}})", 0, "tensor a: shape: found an object"},
        Damage{R"({"__metadata__":{"a":1}})", 0, "__metadata__.a: found 1, expected a string"},
        Damage{R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ appears twice"},
        // Fields.
        Damage{R"({"a":{}})", 0, "tensor a: no dtype"},
        Damage{R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0, "tensor a: no shape"},
        Damage{R"({"a":{"dtype":"U8","shape":[]}})", 0, "tensor a: no data_offsets"},
        Damage{R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: unknown dtype F4"},
        Damage{R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: dtype: found 8, expected a string"},
        Damage{R"({"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1,
               "tensor a: shape: found a string, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
               "tensor a: shape: found -1"},
        Damage{R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "found 1.5"},
        Damage{R"({"a":{"dtype":"U8","shape":[null],"data_offsets":[0,1]}})", 1, "found null"},
        Damage{R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
               "tensor a: more than 8 dimensions"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
               "tensor a: data_offsets: found 1 numbers, expected 2"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1,
               "found 3 numbers, expected 2"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: shape appears twice"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}})", 1,
               "tensor a: found field stride"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
               R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
               2, "tensor a appears twice"},
        // Sizes.
        Damage{R"({"a":{"dtype":"F32","shape":[5],"data_offsets":[0,10]}})", 10,
               "tensor a: found data_offsets [0, 10], expected 20 bytes for F32 [5]"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
               "found data_offsets [1, 0]"},
        Damage{R"({"a":{"dtype":"F32","shape":[4611686018427387903],"data_offsets":[0,4]}})", 4,
               "expected over 2^63 bytes"},
        Damage{R"({"a":{"dtype":"U8","shape":[2147483648,2147483648,4],"data_offsets":[0,0]}})", 0,
               "expected over 2^63 bytes"},
        Damage{R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1,
               "shape: found 18446744073709551615"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}})", 1,
               "data_offsets: found"},
        // Places.
        Damage{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3,
               "found 3 bytes behind the header, expected 4, where its last tensor a ends"},
        Damage{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 20,
               "found 20 bytes behind the header, expected 4"},
        Damage{"{}", 1, "found 1 bytes behind the header, expected 0"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
               "tensor a: begins at byte 1 of the data, expected 0"},
        Damage{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
               5, "tensor b: begins at byte 3 of the data, expected 2, where a ends"},
        Damage{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
               3, "tensor b: begins at byte 1 of the data, expected 2, where a ends"}));

TEST(Safetensors, RefusesHeadersThatDoNotFitTheirFile) {
  EXPECT_THAT(message_of(parse_safetensors({}, "f")), HasSubstr("found 0 bytes"));
  EXPECT_THAT(message_of(parse_safetensors(std::vector<uint8_t>(7), "f")),
              HasSubstr("found 7 bytes, expected at least 8"));
  std::vector<uint8_t> file = file_with("{}", 0);
  file[0] = 3;
  EXPECT_THAT(message_of(parse_safetensors(file, "f")),
              HasSubstr("header end 11 exceeds file size 10"));
  file[7] = 0x80;  // 2^63 and more
  EXPECT_THAT(message_of(parse_safetensors(file, "f")),
              HasSubstr("found 9223372036854775811, expected at most 100000000"));
}

TEST(Safetensors, EveryCutOfAFileIsRefused) {
  const std::string header = R"({"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})";
  const std::vector<uint8_t> file = file_with(header, 8);
  ASSERT_EQ(message_of(parse_safetensors(file, "f")), "accepted");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(message_of(parse_safetensors({file.data(), size}, "f")), "accepted") << size;
  }
}

TEST(Safetensors, WrittenHeadersAreReadBack) {
  const TensorHeader tensors[] = {{"x\"y", Dtype::kF32, {2, 3}}, {"z", Dtype::kI64, {1}}};
  std::string file = safetensors_header(tensors);
  EXPECT_EQ(file.size() % 8, 0u);
  file.append(32, '\0');
  const auto* data = reinterpret_cast<const uint8_t*>(file.data());
  const std::vector<TensorEntry> read = parse_safetensors({data, file.size()}, "f").value();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].name, "x\"y");
  EXPECT_EQ(read[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read[1].dtype, Dtype::kI64);
  EXPECT_EQ(read[1].end, file.size());
}

TEST(ShardIndex, ReadsNamesFilesAndTotal) {
  const ShardIndex index =
      parse_shard_index(R"({"metadata":{"total_size":12},"weight_map":{"a":"f1","b":"f2"}})", "i")
          .value();
  EXPECT_EQ(index.total_size, 12u);
  ASSERT_EQ(index.weight_map.size(), 2u);
  EXPECT_EQ(index.weight_map[1], (std::pair<std::string, std::string>("b", "f2")));
  EXPECT_FALSE(parse_shard_index(R"({"weight_map":{}})", "i").value().total_size.has_value());
}

TEST(ShardIndex, RefusesWhatIsNotAnIndex) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"metadata":{"total_size":"x"},"weight_map":{}})",
                           R"({"metadata":{"total_size":-1},"weight_map":{}})",
                           R"({"metadata":{"total_size":1.5},"weight_map":{}})"}) {
    const Result<ShardIndex> index = parse_shard_index(text, "i.json");
    ASSERT_FALSE(index.has_value()) << text;
    EXPECT_THAT(index.error().message, HasSubstr("i.json: ")) << text;
  }
}

}  // namespace
}  // namespace millrace
