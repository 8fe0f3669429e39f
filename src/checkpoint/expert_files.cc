#include "checkpoint/expert_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace millrace {
namespace {

constexpr Fp4Matrix ExpertWeights::*kMatrices[] = {&ExpertWeights::w1, &ExpertWeights::w2,
                                                   &ExpertWeights::w3};

// Of an expert's tensor, behind the expert's name.
std::string tensor_suffix(size_t t) {
  return format(".w", t / 2 + 1, t % 2 == 0 ? ".weight" : ".scale");
}

uint64_t round_down(uint64_t offset) {
  return offset / ExpertFiles::kBlockBytes * ExpertFiles::kBlockBytes;
}
uint64_t round_up(uint64_t offset) { return round_down(offset + ExpertFiles::kBlockBytes - 1); }

}  // namespace

Result<ExpertFiles> ExpertFiles::open(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ExpertFiles files;
  std::map<size_t, size_t> file_of_shard;
  const auto open_shard = [&](size_t shard) -> Result<size_t> {
    const auto found = file_of_shard.find(shard);
    if (found != file_of_shard.end()) return found->second;
    const MappedFile& mapped = checkpoint.shards()[shard];
    const std::string& path = mapped.path();
    UniqueFd direct(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    const bool is_direct = direct.get() >= 0;
    UniqueFd fd(is_direct ? direct.release() : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info;
    if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) {
      return Error{Code::kUnavailable, format(path, ": cannot open: ", std::strerror(errno))};
    }
    // The tensors' places were read from the file that is mapped.
    if (!mapped.is_mapping_of(fd.get())) {
      return Error{Code::kCorrupt,
                   format(path, ": found another file under this name, expected the one that is "
                                "mapped")};
    }
    if (size_t(info.st_size) != mapped.bytes().size()) {
      return Error{Code::kCorrupt, format(path, ": found ", info.st_size, " bytes, expected ",
                                          mapped.bytes().size(), ", as when it was mapped")};
    }
    // Without reads past the page cache: at least none beyond what is asked for.
    if (!is_direct) ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    files.files_.push_back({std::move(fd), path, is_direct});
    return file_of_shard[shard] = files.files_.size() - 1;
  };

  const int64_t num_layers = config.num_hidden_layers + config.num_nextn_predict_layers;
  for (int64_t l = 0; l < num_layers; ++l) {
    const int64_t stage = l - config.num_hidden_layers;
    Layer layer{stage < 0 ? format("layers.", l, ".ffn.experts.")
                          : format("mtp.", stage, ".ffn.experts."),
                std::vector<Tensors>(size_t(stage < 0 ? config.n_routed_experts
                                                      : config.dspark_n_routed_experts)),
                {}};
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      Tensors& tensors = layer.experts[e];
      for (size_t t = 0; t < kNumTensors; ++t) {
        const std::string name = format(layer.prefix, e, tensor_suffix(t));
        ASSIGN_OR_RETURN(const Checkpoint::Place place, checkpoint.place(name));
        ASSIGN_OR_RETURN(tensors[t].file, open_shard(place.shard));
        tensors[t].begin = place.begin;
        tensors[t].end = place.end;
        files.total_bytes_ += place.end - place.begin;
      }
      const Extents extents = ExpertFiles::extents(tensors);
      const Extent& last = extents.list[extents.count - 1];
      files.slot_bytes_ = std::max(files.slot_bytes_, last.slot_offset + last.end - last.begin);
    }
    for (size_t m = 0; m < std::size(kMatrices); ++m) {
      ASSIGN_OR_RETURN(const Fp4Matrix matrix,
                       checkpoint.fp4_matrix(format(layer.prefix, 0, ".w", m + 1)));
      layer.shape.*kMatrices[m] = {nullptr, nullptr, matrix.n, matrix.k};
    }
    files.layers_.push_back(std::move(layer));
  }
  return files;
}

std::vector<int64_t> ExpertFiles::num_experts() const {
  std::vector<int64_t> counts;
  for (const Layer& layer : layers_) counts.push_back(int64_t(layer.experts.size()));
  return counts;
}

bool ExpertFiles::is_direct() const {
  return std::all_of(files_.begin(), files_.end(), [](const File& file) { return file.is_direct; });
}

ExpertFiles::Extents ExpertFiles::extents(int64_t layer, int32_t id) const {
  return extents(layers_[size_t(layer)].experts[size_t(id)]);
}

// Tensors in the order of their bytes; those that share a block or follow each other are read as
// one.
ExpertFiles::Extents ExpertFiles::extents(const Tensors& tensors) {
  Tensors sorted = tensors;
  std::sort(sorted.begin(), sorted.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.file, a.begin) < std::pair(b.file, b.begin);
  });
  Extents extents;
  uint64_t slot_offset = 0;
  for (const Tensor& tensor : sorted) {
    Extent* last = extents.count > 0 ? &extents.list[extents.count - 1] : nullptr;
    if (last != nullptr && last->file == tensor.file && tensor.begin <= last->end) {
      slot_offset += round_up(tensor.end) - last->end;
      last->wanted_end = tensor.end;
      last->end = round_up(tensor.end);
      continue;
    }
    const uint64_t begin = round_down(tensor.begin), end = round_up(tensor.end);
    extents.list[extents.count++] = {tensor.file, begin, tensor.end, end, slot_offset};
    slot_offset += end - begin;
  }
  return extents;
}

ExpertWeights ExpertFiles::weights(int64_t layer, int32_t id, const std::byte* slot) const {
  const Layer& of = layers_[size_t(layer)];
  const Tensors& tensors = of.experts[size_t(id)];
  const Extents extents = ExpertFiles::extents(tensors);
  const auto address = [&](const Tensor& tensor) -> const uint8_t* {
    for (size_t i = 0; i < extents.count; ++i) {
      const Extent& extent = extents.list[i];
      if (extent.file != tensor.file || tensor.begin < extent.begin || tensor.end > extent.end) {
        continue;
      }
      const std::byte* begin = slot + extent.slot_offset + (tensor.begin - extent.begin);
      return reinterpret_cast<const uint8_t*>(begin);
    }
    check_failed(__FILE__, __LINE__, "a tensor is in an extent");
  };
  ExpertWeights weights = of.shape;
  for (size_t m = 0; m < std::size(kMatrices); ++m) {
    (weights.*kMatrices[m]).codes = address(tensors[2 * m]);
    (weights.*kMatrices[m]).scales = address(tensors[2 * m + 1]);
  }
  return weights;
}

std::string ExpertFiles::describe(int64_t layer, int32_t id, size_t file, uint64_t offset) const {
  const Layer& of = layers_[size_t(layer)];
  const Tensors& tensors = of.experts[size_t(id)];
  // Blocks begin before the tensor that they are read for.
  size_t found = 0;
  uint64_t nearest = UINT64_MAX;
  for (size_t t = 0; t < kNumTensors; ++t) {
    if (tensors[t].file != file || tensors[t].end <= offset) continue;
    if (tensors[t].end >= nearest) continue;
    nearest = tensors[t].end;
    found = t;
  }
  return format(files_[file].path, ": tensor ", of.prefix, id, tensor_suffix(found));
}

}  // namespace millrace
