#include "checkpoint/checkpoint_writer.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>

#include "base/check.h"
#include "base/format.h"
#include "checkpoint/safetensors.h"
#include "sys/file.h"
#include "sys/output_file.h"

namespace millrace {
namespace {

namespace json = boost::json;

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // written between two looks at progress

int64_t total_bytes(std::span<const TensorSpec> tensors) {
  int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

// Cuts `tensors` into `count` runs of about the same size, none of them empty.
void append_even(std::vector<TensorSpec> tensors, int64_t count, std::vector<Shard>& shards) {
  const auto all = double(total_bytes(tensors));
  double done = 0;
  size_t next = 0;
  for (int64_t part = 0; part < count; ++part) {
    Shard& shard = shards.emplace_back();
    const size_t last = tensors.size() - size_t(count - part - 1);  // one is left for each other
    while (next < last && (shard.tensors.empty() || part == count - 1 ||
                           done < all * double(part + 1) / double(count))) {
      done += double(tensors[next].bytes());
      shard.tensors.push_back(std::move(tensors[next++]));
    }
  }
}

Status write_shard(const std::string& folder, const Shard& shard, const TensorValues& values,
                   const std::function<bool(int64_t)>& advance) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(format(folder, "/", shard.file_name)));
  std::vector<TensorHeader> headers;
  for (const TensorSpec& t : shard.tensors) headers.push_back({t.name, t.dtype, t.shape});
  const std::string header = safetensors_header(headers);
  RETURN_IF_ERROR(file.write({reinterpret_cast<const uint8_t*>(header.data()), header.size()}));
  std::vector<uint8_t> piece;
  for (const TensorSpec& tensor : shard.tensors) {
    const int64_t size = tensor.bytes();
    if (!values) {
      file.skip(uint64_t(size));
      if (!advance(size)) return Error{Code::kCancelled, "stopped"};
      continue;
    }
    for (int64_t offset = 0; offset < size; offset += kPieceBytes) {
      piece.resize(size_t(std::min(kPieceBytes, size - offset)));
      values(tensor, offset, piece);
      RETURN_IF_ERROR(file.write(piece));
      if (!advance(int64_t(piece.size()))) return Error{Code::kCancelled, "stopped"};
    }
  }
  return file.finish();
}

std::string index_json(std::span<const Shard> shards) {
  json::object weight_map;
  int64_t total_size = 0;
  for (const Shard& shard : shards) {
    total_size += total_bytes(shard.tensors);
    for (const TensorSpec& tensor : shard.tensors) weight_map[tensor.name] = shard.file_name;
  }
  const json::object index = {{"metadata", {{"total_size", total_size}}},
                              {"weight_map", std::move(weight_map)}};
  return json::serialize(index) + "\n";
}

}  // namespace

std::vector<Shard> plan_shards(const ModelConfig& config, int64_t num_shards) {
  std::vector<TensorSpec> tensors = tensor_list(config);
  MR_CHECK_OP(num_shards, >=, 1);
  MR_CHECK_OP(num_shards, <=, int64_t(tensors.size()));
  const int64_t num_stages = config.num_nextn_predict_layers;
  const std::vector<int64_t>& tables = config.engram_layer_ids;
  std::vector<Shard> apart(size_t(num_stages) + tables.size());
  std::vector<TensorSpec> rest;
  for (const TensorSpec& tensor : tensors) {
    int64_t place = tensor.layer - config.num_hidden_layers;  // of a draft stage
    if (tensor.part == TensorPart::kEngramTable) {
      place = num_stages + (std::find(tables.begin(), tables.end(), tensor.layer) - tables.begin());
    }
    (place < 0 ? rest : apart[size_t(place)].tensors).push_back(tensor);
  }
  std::vector<Shard> shards;
  const int64_t num_others = num_shards - int64_t(apart.size());
  if (num_others >= 1 && num_others <= int64_t(rest.size())) {
    append_even(std::move(rest), num_others, shards);
    for (Shard& shard : apart) shards.push_back(std::move(shard));
  } else {
    append_even(std::move(tensors), num_shards, shards);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].file_name = name;
  }
  return shards;
}

Status write_shards(const std::string& folder, std::span<const Shard> shards,
                    const TensorValues& values, const WriteProgress& progress) {
  int64_t bytes_all = 0, bytes_done = 0;
  for (const Shard& shard : shards) bytes_all += total_bytes(shard.tensors);
  const auto advance = [&](int64_t bytes) {
    bytes_done += bytes;
    return !progress || progress(bytes_done, bytes_all);
  };
  Status status;
  size_t num_written = 0;
  while (status.ok() && num_written < shards.size()) {
    status = write_shard(folder, shards[num_written], values, advance);
    if (status.ok()) ++num_written;
  }
  if (status.ok())
    status = write_file(folder + "/model.safetensors.index.json", index_json(shards));
  if (status.ok()) return {};
  for (const Shard& shard : shards.first(num_written)) {
    ::unlink(format(folder, "/", shard.file_name).c_str());
  }
  return status;
}

}  // namespace millrace
