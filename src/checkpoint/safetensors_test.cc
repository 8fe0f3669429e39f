#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/format.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

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
  EXPECT_THAT(message, StartsWith("m.safetensors: ")) << d.header;
  EXPECT_THAT(message, HasSubstr("found ")) << d.header;
  EXPECT_THAT(message, HasSubstr(", expected ")) << d.header;
  EXPECT_THAT(message, HasSubstr(d.message)) << d.header;
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, RefusesHeader,
    testing::Values(
        // The JSON itself.
        Damage{"", 0, "header: found incomplete JSON at byte 0 of the header, expected JSON"},
        Damage{"{", 0, "header: found incomplete JSON at byte 1"},
        Damage{"nonsense", 0, "header: found syntax error at byte 0"},
        Damage{R"({"a":{"dtype":"U8",}})", 0, "header: found syntax error at byte 19"},
        Damage{R"({"a":{"dtype":"U8" "shape":[]}})", 0, "header: found syntax error at byte 19"},
        Damage{R"({'a':{}})", 0, "header: found syntax error at byte 1"},
        Damage{"\xef\xbb\xbf{}", 0, "header: found syntax error at byte 0"},
        Damage{"[]", 0, "found a list, expected an object"},
        Damage{"7", 0, "found 7, expected an object"},
        Damage{"{} x", 0, "header: found 1 bytes behind the JSON object, expected none"},
        Damage{"{}{}", 0, "header: found 2 bytes behind the JSON object, expected none"},
        Damage{"{\"a\xff\":1}", 0, "header: found syntax error at byte 3"},
        Damage{R"({"a":7})", 0, "a: found 7"},
        Damage{R"({"a":[[[[[[[[]]]]]]]]})", 0, "a: found a list"},
        Damage{R"({"a":{"shape":[[1]]}})", 0, "tensor a: shape: found a list"},
        Damage{R"({"a":{"shape":{"b":{"c":{}}}}})", 0, "tensor a: shape: found an object"},
        Damage{R"({"__metadata__":{"a":1}})", 0, "__metadata__.a: found 1, expected a string"},
        Damage{R"({"__metadata__":{},"__metadata__":{}})", 0,
               "__metadata__: found again, expected once"},
        // Fields.
        Damage{R"({"a":{}})", 0, "tensor a: dtype: found nothing, expected a string"},
        Damage{R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0,
               "tensor a: shape: found nothing, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[]}})", 0,
               "tensor a: data_offsets: found nothing, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: dtype: found F4, expected one of BOOL, U8, I8, F8_E4M3, "},
        Damage{R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: dtype: found 8, expected a string"},
        Damage{R"({"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1,
               "tensor a: shape: found a string, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
               "tensor a: shape: found -1"},
        Damage{R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "found 1.5"},
        Damage{R"({"a":{"dtype":"U8","shape":[null],"data_offsets":[0,1]}})", 1, "found null"},
        Damage{R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
               "tensor a: shape: found more than 8 sizes, expected at most 8"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
               "tensor a: data_offsets: found 1 numbers, expected 2"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1,
               "found 3 numbers, expected 2"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: shape: found again, expected once"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}})", 1,
               "tensor a: found field stride"},
        Damage{R"({"a":{"dtype":"bf16","shape":[1],"data_offsets":[0,2]}})", 2,
               "tensor a: dtype: found bf16, expected one of"},
        Damage{R"({"a":{"dtype":null,"shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: dtype: found null, expected a string"},
        Damage{R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1,
               "tensor a: dtype: found a list, expected a string"},
        Damage{R"({"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}})", 1,
               "tensor a: shape: found true, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4,
               "tensor a: shape: found 4, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":"0,1"}})", 1,
               "tensor a: data_offsets: found a string, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})", 1,
               "tensor a: data_offsets: found 1, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1,
               "tensor a: data_offsets: found -1, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":{"begin":0}}})", 1,
               "tensor a: data_offsets: found an object, expected a list of sizes"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"I8"}})", 1,
               "tensor a: dtype: found again, expected once"},
        Damage{R"({"a":[0,1]})", 1, "a: found a list, expected an object"},
        Damage{R"({"__metadata__":[]})", 0, "__metadata__: found a list, expected an object"},
        Damage{R"({"__metadata__":{"a":{}}})", 0,
               "__metadata__.a: found an object, expected a string"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
               R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
               2, "tensor a: found again, expected once"},
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
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,)"
               R"(18446744073709551615]}})",
               1, "tensor a: found at byte 18446744073709551614 of the data, expected at 0"},
        Damage{R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,1]}})", 1,
               "found data_offsets [0, 1], expected 0 bytes for U8 [0]"},
        Damage{R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,2]}})", 2,
               "found data_offsets [0, 2], expected 1 bytes for U8 []"},
        Damage{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}})", 5,
               "found data_offsets [0, 5], expected 4 bytes for F32 [1]"},
        // Places.
        Damage{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3,
               "found 3 bytes behind the header, expected 4, where its last tensor a ends"},
        Damage{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 20,
               "found 20 bytes behind the header, expected 4"},
        Damage{"{}", 1, "found 1 bytes behind the header, expected 0"},
        Damage{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
               "tensor a: found at byte 1 of the data, expected at 0"},
        Damage{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
               5, "tensor b: found at byte 3 of the data, expected at 2, where a ends"},
        Damage{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
               3, "tensor b: found at byte 1 of the data, expected at 2, where a ends"},
        Damage{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})",
               2, "tensor b: found at byte 0 of the data, expected at 2, where a ends"},
        Damage{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
               4, "tensor e: found at byte 2 of the data, expected at 4, where a ends"}));

TEST(Safetensors, RefusesHeadersThatDoNotFitTheirFile) {
  EXPECT_THAT(message_of(parse_safetensors({}, "f")), HasSubstr("found 0 bytes"));
  EXPECT_THAT(message_of(parse_safetensors(std::vector<uint8_t>(7), "f")),
              HasSubstr("found 7 bytes, expected at least 8"));
  std::vector<uint8_t> file = file_with("{}", 0);
  file[0] = 3;
  EXPECT_THAT(message_of(parse_safetensors(file, "f")),
              HasSubstr("header length: found 3, expected at most 2 in a file of 10 bytes"));
  file[0] = 0;
  EXPECT_THAT(message_of(parse_safetensors(file, "f")),
              HasSubstr("header: found incomplete JSON at byte 0 of the header, expected JSON"));
  file[0] = 3;
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
  const std::pair<std::string, const char*> cases[] = {
      {"", "found incomplete JSON at byte 0, expected JSON"},
      {R"({"weight_map":{"a":"f"})", "found incomplete JSON at byte 23, expected JSON"},
      {R"({"weight_map":{"a":"f"}} {})", "found extra data at byte 25, expected JSON"},
      {"{\"weight_map\":{\"a\":\"\xc3\x28\"}}", "found syntax error at byte 20, expected JSON"},
      {std::string(100, '['), "found too deep at byte 8, expected JSON of at most 8 levels"},
      {"[]", "found [], expected an object"},
      {"{}", "weight_map: found nothing, expected an object of file names"},
      {R"({"weight_map":[]})", "weight_map: found [], expected an object of file names"},
      {R"({"weight_map":{"a":1}})", "weight_map.a: found 1, expected a file name"},
      {R"({"weight_map":{"a":["f"]}})", "weight_map.a: found [\"f\"], expected a file name"},
      {R"({"weight_map":{"a":"f","a":"g"}})",
       "weight_map.a: found again at byte 25, expected each key once"},
      {R"({"weight_map":{},"weight_map":{"a":"f"}})",
       "weight_map: found again at byte 28, expected each key once"},
      {R"({"metadata":7,"weight_map":{}})", "metadata: found 7, expected an object"},
      {R"({"metadata":{"total_size":"x"},"weight_map":{}})",
       "metadata.total_size: found \"x\", expected a number of bytes"},
      {R"({"metadata":{"total_size":-1},"weight_map":{}})",
       "metadata.total_size: found -1, expected a number of bytes"},
      {R"({"metadata":{"total_size":1.5},"weight_map":{}})",
       "metadata.total_size: found 1.5, expected a number of bytes"},
      {R"({"metadata":{"total_size":18446744073709551616},"weight_map":{}})",
       "metadata.total_size: found 18446744073709551616, expected a number of bytes"},
      {std::string((32 << 20) + 1, ' '), "found 33554433 bytes, expected at most 33554432"},
  };
  for (const auto& [text, want] : cases) {
    const Result<ShardIndex> index = parse_shard_index(text, "i.json");
    ASSERT_FALSE(index.has_value()) << text;
    EXPECT_EQ(index.error().message, format("i.json: ", want));
  }
}

}  // namespace
}  // namespace millrace
