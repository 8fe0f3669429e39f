#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/format.h"
#include "checkpoint/safetensors.h"

namespace millrace {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr size_t kMaxConfigBytes = 1 << 20;

std::string in_folder(const std::string& folder, std::string_view name) {
  return format(folder, "/", name);
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Error prefixed(const std::string& path, const Error& error) {
  return {error.code, format(path, ": ", error.message)};
}

Error corrupt(const std::string& path, const std::string& what) {
  return {Code::kCorrupt, format(path, ": ", what)};
}

std::string type_text(Dtype dtype, const std::vector<int64_t>& shape) {
  return format(dtype_name(dtype), " ", shape_text(shape));
}

// The *.safetensors of the folder itself, by name.
Result<std::vector<std::string>> shards_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ec;
  std::filesystem::directory_iterator entry(folder, ec);
  for (; !ec && entry != std::filesystem::directory_iterator(); entry.increment(ec)) {
    // Links to nothing and folders of such a name are refused when they are opened.
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".safetensors") names.push_back(path.filename().string());
  }
  if (ec) return Error{Code::kUnavailable, format(folder, ": cannot list: ", ec.message())};
  std::sort(names.begin(), names.end());
  return names;
}

// The files an index names, by name.
Result<std::vector<std::string>> shards_of(const ShardIndex& index, const std::string& path) {
  std::set<std::string_view> names;
  for (const auto& [tensor, file] : index.weight_map) {
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return corrupt(path, format("tensor ", tensor, ": found file \"", file,
                                  "\", expected the name of a file in the same folder"));
    }
    names.insert(file);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

// fp4 codes are bytes without a sign, and some writers say so.
bool same_dtype(Dtype found, Dtype expected) {
  return found == expected || (found == Dtype::kU8 && expected == Dtype::kI8);
}

int64_t blocks(int64_t size) { return (size + kQuantBlock - 1) / kQuantBlock; }

}  // namespace

Checkpoint::Checkpoint(ModelConfig config)
    : config_(std::move(config)),
      specs_(tensor_list(config_)),
      data_(specs_.size(), nullptr),
      begin_(specs_.size(), 0),
      shard_of_(specs_.size(), -1) {
  by_name_.reserve(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) by_name_.emplace(specs_[i].name, i);
}

Result<Checkpoint> Checkpoint::open(const std::string& folder, const OpenProgress& progress) {
  const std::string config_path = in_folder(folder, "config.json");
  ASSIGN_OR_RETURN(const std::string config_text, read_file(config_path, kMaxConfigBytes));
  Result<ModelConfig> config = parse_model_config(config_text);
  if (!config.has_value()) return prefixed(config_path, config.error());

  const std::string index_path = in_folder(folder, kIndexName);
  std::optional<ShardIndex> index;
  std::vector<std::string> names;
  // A link to nothing is an index that is missing, not a model without one.
  std::error_code ec;
  if (std::filesystem::symlink_status(index_path, ec).type() !=
      std::filesystem::file_type::not_found) {
    ASSIGN_OR_RETURN(const std::string text, read_file(index_path, kMaxIndexBytes));
    ASSIGN_OR_RETURN(index, parse_shard_index(text, index_path));
    ASSIGN_OR_RETURN(names, shards_of(*index, index_path));
    if (names.empty()) {
      return corrupt(index_path, "weight_map: found {}, expected the tensors' files");
    }
  } else {
    ASSIGN_OR_RETURN(names, shards_in(folder));
    if (names.empty()) {
      return Error{Code::kNotFound, format(folder, ": found no file *.safetensors, expected the "
                                                   "shards of the checkpoint")};
    }
  }

  Checkpoint checkpoint(std::move(config.value()));
  for (size_t i = 0; i < names.size(); ++i) {
    RETURN_IF_ERROR(checkpoint.add_shard(in_folder(folder, names[i])));
    if (progress) progress(int64_t(i) + 1, int64_t(names.size()));
  }
  if (index.has_value()) RETURN_IF_ERROR(checkpoint.check_index(*index, index_path));
  RETURN_IF_ERROR(checkpoint.check_complete(folder));
  return checkpoint;
}

Status Checkpoint::add_shard(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  ASSIGN_OR_RETURN(const std::vector<TensorEntry> entries, parse_safetensors(file.bytes(), path));
  for (const TensorEntry& entry : entries) {
    const auto found = by_name_.find(entry.name);
    if (found == by_name_.end()) {
      return corrupt(path,
                     format("tensor ", entry.name, ": found ", type_text(entry.dtype, entry.shape),
                            ", expected no tensor of this name by config.json"));
    }
    const size_t i = found->second;
    const TensorSpec& spec = specs_[i];
    if (shard_of_[i] >= 0) {
      return corrupt(path, format("tensor ", entry.name, ": found again, expected only in ",
                                  file_name(shards_[size_t(shard_of_[i])].path())));
    }
    if (!same_dtype(entry.dtype, spec.dtype) || entry.shape != spec.shape) {
      return corrupt(path,
                     format("tensor ", entry.name, ": found ", type_text(entry.dtype, entry.shape),
                            ", expected ", type_text(spec.dtype, spec.shape)));
    }
    shard_of_[i] = int64_t(shards_.size());
    begin_[i] = entry.begin;
    data_[i] = file.bytes().data() + entry.begin;
    if (spec.part == TensorPart::kEngramTable) {
      file.expect_single_reads({data_[i], entry.end - entry.begin});
    }
    if (entry.begin % uint64_t(dtype_bytes(spec.dtype)) != 0) {
      const size_t bytes = entry.end - entry.begin;
      copies_.emplace_back((bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t));
      std::memcpy(copies_.back().data(), data_[i], bytes);
      data_[i] = reinterpret_cast<const uint8_t*>(copies_.back().data());
      copied_bytes_ += int64_t(bytes);
    }
  }
  shards_.push_back(std::move(file));
  return {};
}

Status Checkpoint::check_index(const ShardIndex& index, const std::string& path) const {
  std::vector<bool> is_named(specs_.size(), false);
  for (const auto& [name, file] : index.weight_map) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      return corrupt(path, format("tensor ", name, ": found in the index, expected no tensor of ",
                                  "this name by config.json"));
    }
    is_named[found->second] = true;
    const int64_t shard = shard_of_[found->second];
    const std::string holder = shard < 0 ? "no file" : file_name(shards_[size_t(shard)].path());
    if (holder != file) {
      return corrupt(path, format("tensor ", name, ": found in ", holder, ", expected in ", file,
                                  " by the index"));
    }
  }
  int64_t total_size = 0;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (shard_of_[i] < 0) continue;
    total_size += specs_[i].bytes();
    if (is_named[i]) continue;
    return corrupt(path, format("tensor ", specs_[i].name, ": found in ",
                                file_name(shards_[size_t(shard_of_[i])].path()),
                                ", expected it in the index too"));
  }
  if (index.total_size.has_value() && *index.total_size != uint64_t(total_size)) {
    return corrupt(path, format("metadata.total_size: found ", *index.total_size, ", expected ",
                                total_size, ", the bytes of all tensors"));
  }
  return {};
}

Status Checkpoint::check_complete(const std::string& folder) const {
  const auto first = std::find(shard_of_.begin(), shard_of_.end(), -1);
  if (first == shard_of_.end()) return {};
  const TensorSpec& spec = specs_[size_t(first - shard_of_.begin())];
  const auto others = std::count(first + 1, shard_of_.end(), -1);
  return corrupt(folder,
                 format("tensor ", spec.name, ": found in no file, expected ",
                        type_text(spec.dtype, spec.shape),
                        others > 0 ? format(" (", others, " more are missing)") : std::string()));
}

Result<Checkpoint::Place> Checkpoint::place(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    return Error{Code::kNotFound, format("tensor ", name, ": the checkpoint has none")};
  }
  const size_t i = found->second;
  return Place{size_t(shard_of_[i]), begin_[i], begin_[i] + uint64_t(specs_[i].bytes())};
}

// The tensor, if it has the dtype and rank.
Result<Checkpoint::Tensor> Checkpoint::find(std::string_view name, Dtype dtype, size_t rank) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    return Error{Code::kNotFound, format("tensor ", name, ": the checkpoint has none")};
  }
  const TensorSpec& spec = specs_[found->second];
  if (spec.dtype != dtype || spec.shape.size() != rank) {
    return Error{Code::kInvalidArgument,
                 format("tensor ", name, ": found ", type_text(spec.dtype, spec.shape),
                        ", expected ", dtype_name(dtype), " of ", rank, " dimensions")};
  }
  return Tensor{&spec, data_[found->second]};
}

// Codes at base_name.weight and scales at base_name.scale, whose shape must be
// [scale_rows(rows), blocks(columns)].
Result<Checkpoint::Quantized> Checkpoint::find_quantized(std::string_view base_name, Dtype dtype,
                                                         ScaleRows scale_rows) const {
  ASSIGN_OR_RETURN(const Tensor weight, find(format(base_name, ".weight"), dtype, 2));
  ASSIGN_OR_RETURN(const Tensor scale, find(format(base_name, ".scale"), Dtype::kF8E8M0, 2));
  const int64_t rows = weight.spec->shape[0];
  const int64_t columns = weight.spec->shape[1] * (dtype == Dtype::kI8 ? 2 : 1);
  const std::vector<int64_t> expected = {scale_rows == ScaleRows::kPerBlock ? blocks(rows) : rows,
                                         blocks(columns)};
  if (scale.spec->shape != expected) {
    return Error{Code::kInvalidArgument,
                 format("tensor ", scale.spec->name, ": found ", shape_text(scale.spec->shape),
                        ", expected ", shape_text(expected))};
  }
  return Quantized{weight.data, scale.data, rows, columns};
}

Result<Fp8Matrix> Checkpoint::fp8_matrix(std::string_view base_name) const {
  ASSIGN_OR_RETURN(const Quantized q,
                   find_quantized(base_name, Dtype::kF8E4M3, ScaleRows::kPerBlock));
  return Fp8Matrix{.codes = q.codes, .scales = q.scales, .n = q.rows, .k = q.columns};
}

Result<Fp4Matrix> Checkpoint::fp4_matrix(std::string_view base_name) const {
  ASSIGN_OR_RETURN(const Quantized q, find_quantized(base_name, Dtype::kI8, ScaleRows::kPerRow));
  return Fp4Matrix{.codes = q.codes, .scales = q.scales, .n = q.rows, .k = q.columns};
}

Result<Fp8Table> Checkpoint::fp8_table(std::string_view base_name) const {
  ASSIGN_OR_RETURN(const Quantized q,
                   find_quantized(base_name, Dtype::kF8E4M3, ScaleRows::kPerRow));
  return Fp8Table{.codes = q.codes, .scales = q.scales, .rows = q.rows, .width = q.columns};
}

Result<Bf16Matrix> Checkpoint::bf16_matrix(std::string_view name) const {
  ASSIGN_OR_RETURN(const Tensor t, find(name, Dtype::kBF16, 2));
  return Bf16Matrix{
      .data = reinterpret_cast<const bf16*>(t.data), .n = t.spec->shape[0], .k = t.spec->shape[1]};
}

Result<F32Matrix> Checkpoint::f32_matrix(std::string_view name) const {
  ASSIGN_OR_RETURN(const Tensor t, find(name, Dtype::kF32, 2));
  return F32Matrix{
      .data = reinterpret_cast<const float*>(t.data), .n = t.spec->shape[0], .k = t.spec->shape[1]};
}

Result<std::span<const bf16>> Checkpoint::bf16_vector(std::string_view name) const {
  ASSIGN_OR_RETURN(const Tensor t, find(name, Dtype::kBF16, 1));
  return std::span(reinterpret_cast<const bf16*>(t.data), size_t(t.spec->shape[0]));
}

Result<std::span<const float>> Checkpoint::f32_vector(std::string_view name) const {
  ASSIGN_OR_RETURN(const Tensor t, find(name, Dtype::kF32, 1));
  return std::span(reinterpret_cast<const float*>(t.data), size_t(t.spec->shape[0]));
}

}  // namespace millrace
