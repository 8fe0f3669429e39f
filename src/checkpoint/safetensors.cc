#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <cstring>
#include <unordered_set>

#include "base/check.h"
#include "base/format.h"
#include "json/document.h"

namespace millrace {
namespace {

namespace json = boost::json;

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they are");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;
// Ten times the release's hundred thousand names.
constexpr JsonFileLimits kIndexLimits = {.max_bytes = kMaxIndexBytes, .max_depth = 8};

std::string dtype_names() {
  std::string names;
  for (int i = 0; i <= int(Dtype::kF64); ++i) {
    names += format(i == 0 ? "" : ", ", dtype_name(Dtype(i)));
  }
  return names;
}

// Receives the header's JSON piece by piece: a document tree would silently drop a name that
// appears twice, and costs several times as much for the 96,085 tensors of the release.
struct HeaderHandler {
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_key_size = 1 << 16;
  static constexpr size_t max_string_size = size_t(-1);

  // Where the parser stands.
  enum class In { kFile, kHeader, kMetadata, kTensor, kShape, kOffsets };

  In in = In::kFile;
  std::vector<TensorEntry> tensors;  // the last one is being read
  std::string key;                   // of the innermost object
  std::string text;                  // of a string that comes in parts
  std::vector<uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false, has_metadata = false;
  std::string problem;  // set when a callback stops the parser

  bool fail(json::error_code& ec, std::string what) {
    problem = std::move(what);
    ec = json::error::syntax;
    return false;
  }
  bool fail_here(json::error_code& ec, std::string_view what) {
    switch (in) {
      case In::kFile:
        return fail(ec, format("header: found ", what, ", expected an object"));
      case In::kHeader:
        return fail(ec, format(key, ": found ", what, ", expected an object"));
      case In::kMetadata:
        return fail(ec, format("__metadata__.", key, ": found ", what, ", expected a string"));
      case In::kTensor:
      case In::kShape:
      case In::kOffsets:
        break;
    }
    return fail(ec, format("tensor ", tensors.back().name, ": ", key, ": found ", what,
                           ", expected ", key == "dtype" ? "a string" : "a list of sizes"));
  }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }

  bool on_object_begin(json::error_code& ec) {
    if (in == In::kFile) {
      in = In::kHeader;
    } else if (in == In::kHeader && key == "__metadata__") {
      if (has_metadata) return fail(ec, "__metadata__: found again, expected once");
      has_metadata = true;
      in = In::kMetadata;
    } else if (in == In::kHeader) {
      tensors.emplace_back();
      tensors.back().name = key;
      has_dtype = has_shape = has_offsets = false;
      in = In::kTensor;
    } else {
      return fail_here(ec, "an object");
    }
    key.clear();
    return true;
  }

  bool on_object_end(size_t, json::error_code& ec) {
    if (in == In::kTensor) {
      const std::string& name = tensors.back().name;
      const char* missing = !has_dtype     ? "dtype"
                            : !has_shape   ? "shape"
                            : !has_offsets ? "data_offsets"
                                           : nullptr;
      if (missing != nullptr) {
        return fail(ec, format("tensor ", name, ": ", missing, ": found nothing, expected ",
                               has_dtype ? "a list of sizes" : "a string"));
      }
    }
    in = in == In::kHeader ? In::kFile : In::kHeader;
    key.clear();
    return true;
  }

  bool on_array_begin(json::error_code& ec) {
    if (in == In::kTensor && key == "shape") {
      in = In::kShape;
    } else if (in == In::kTensor && key == "data_offsets") {
      in = In::kOffsets;
      offsets.clear();
    } else {
      return fail_here(ec, "a list");
    }
    return true;
  }

  bool on_array_end(size_t, json::error_code& ec) {
    TensorEntry& tensor = tensors.back();
    if (in == In::kOffsets) {
      if (offsets.size() != 2) {
        return fail(ec, format("tensor ", tensor.name, ": data_offsets: found ", offsets.size(),
                               " numbers, expected 2"));
      }
      tensor.begin = offsets[0];
      tensor.end = offsets[1];
    }
    in = In::kTensor;
    return true;
  }

  bool on_key_part(json::string_view s, size_t, json::error_code&) {
    text.append(s.data(), s.size());
    return true;
  }
  bool on_key(json::string_view s, size_t, json::error_code& ec) {
    text.append(s.data(), s.size());
    key.swap(text);
    text.clear();
    if (in != In::kTensor) return true;
    bool* seen = key == "dtype"          ? &has_dtype
                 : key == "shape"        ? &has_shape
                 : key == "data_offsets" ? &has_offsets
                                         : nullptr;
    const std::string& name = tensors.back().name;
    if (seen == nullptr) {
      return fail(ec, format("tensor ", name, ": found field ", key,
                             ", expected dtype, shape and data_offsets"));
    }
    if (*seen) {
      return fail(ec, format("tensor ", name, ": ", key, ": found again, expected once"));
    }
    *seen = true;
    return true;
  }

  bool on_string_part(json::string_view s, size_t, json::error_code&) {
    if (in == In::kTensor) text.append(s.data(), s.size());
    return true;
  }
  bool on_string(json::string_view s, size_t, json::error_code& ec) {
    if (in == In::kMetadata) return true;
    if (in != In::kTensor || key != "dtype") return fail_here(ec, "a string");
    text.append(s.data(), s.size());
    const std::optional<Dtype> dtype = dtype_from_name(text);
    if (!dtype.has_value()) {
      return fail(ec, format("tensor ", tensors.back().name, ": dtype: found ", text,
                             ", expected one of ", dtype_names()));
    }
    tensors.back().dtype = *dtype;
    text.clear();
    return true;
  }

  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, json::error_code& ec) {
    if (value < 0) return fail_here(ec, format(value));
    return on_size(uint64_t(value), ec);
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code& ec) {
    return on_size(value, ec);
  }
  bool on_size(uint64_t value, json::error_code& ec) {
    if (in == In::kOffsets && offsets.size() < 3) {
      offsets.push_back(value);
      return true;
    }
    if (in == In::kShape && value < uint64_t{1} << 62) {
      std::vector<int64_t>& shape = tensors.back().shape;
      if (shape.size() == kMaxRank) {
        return fail(ec, format("tensor ", tensors.back().name, ": shape: found more than ",
                               kMaxRank, " sizes, expected at most ", kMaxRank));
      }
      shape.push_back(int64_t(value));
      return true;
    }
    return fail_here(ec, format(value));
  }
  bool on_double(double value, json::string_view, json::error_code& ec) {
    return fail_here(ec, format(value));
  }
  bool on_bool(bool value, json::error_code& ec) { return fail_here(ec, value ? "true" : "false"); }
  bool on_null(json::error_code& ec) { return fail_here(ec, "null"); }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

Error corrupt(std::string_view file_name, const std::string& what) {
  return {Code::kCorrupt, format(file_name, ": ", what)};
}

// dtype x shape, or nothing beyond 2^63.
std::optional<uint64_t> payload_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = dtype_bytes(dtype);
  // A zero anywhere makes the tensor empty, however large the other sizes are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return uint64_t(bytes);
}

// Turns offsets into the data part into offsets into the file, in the order of the bytes, and
// checks that the tensors are exactly the data part.
Status place_tensors(std::vector<TensorEntry>& tensors, uint64_t data_begin, uint64_t file_size,
                     std::string_view file_name) {
  for (const TensorEntry& t : tensors) {
    const std::optional<uint64_t> bytes = payload_bytes(t.dtype, t.shape);
    if (t.begin > t.end || !bytes.has_value() || t.end - t.begin != *bytes) {
      return corrupt(file_name,
                     format("tensor ", t.name, ": found data_offsets [", t.begin, ", ", t.end,
                            "], expected ", bytes.has_value() ? format(*bytes) : "over 2^63",
                            " bytes for ", dtype_name(t.dtype), " ", shape_text(t.shape)));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& t : tensors) {
    if (t.begin != expected) {
      const std::string where =
          previous == nullptr ? "where the data begin" : format("where ", previous->name, " ends");
      return corrupt(file_name, format("tensor ", t.name, ": found at byte ", t.begin,
                                       " of the data, expected at ", expected, ", ", where));
    }
    expected = t.end;
    previous = &t;
  }
  if (expected != file_size - data_begin) {
    const std::string where =
        previous == nullptr ? "its header" : format("its last tensor ", previous->name);
    return corrupt(file_name, format("found ", file_size - data_begin, " bytes behind the header",
                                     ", expected ", expected, ", where ", where, " ends"));
  }
  for (TensorEntry& t : tensors) {
    t.begin += data_begin;
    t.end += data_begin;
  }
  return {};
}

}  // namespace

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const uint8_t> file,
                                                   std::string_view file_name) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    return corrupt(file_name, format("found ", file.size(), " bytes, expected at least 8"));
  }
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    return corrupt(file_name, format("header length: found ", header_bytes, ", expected at most ",
                                     kMaxHeaderBytes));
  }
  const uint64_t data_begin = sizeof header_bytes + header_bytes;
  if (data_begin > file.size()) {
    return corrupt(file_name, format("header length: found ", header_bytes, ", expected at most ",
                                     file.size() - sizeof header_bytes, " in a file of ",
                                     file.size(), " bytes"));
  }

  json::parse_options options;
  options.max_depth = 4;  // header, tensor, list, and one to be refused by name
  json::basic_parser<HeaderHandler> parser(options);
  json::error_code ec;
  const char* text = reinterpret_cast<const char*>(file.data()) + sizeof header_bytes;
  const size_t consumed = parser.write_some(false, text, header_bytes, ec);
  HeaderHandler& header = parser.handler();
  if (!header.problem.empty()) return corrupt(file_name, header.problem);
  if (ec) {
    return corrupt(file_name, format("header: found ", ec.message(), " at byte ", consumed,
                                     " of the header, expected JSON"));
  }
  if (consumed != header_bytes) {
    return corrupt(file_name, format("header: found ", header_bytes - consumed,
                                     " bytes behind the JSON object, expected none"));
  }

  std::vector<TensorEntry> tensors = std::move(header.tensors);
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& t : tensors) {
    if (!names.insert(t.name).second) {
      return corrupt(file_name, format("tensor ", t.name, ": found again, expected once"));
    }
  }
  RETURN_IF_ERROR(place_tensors(tensors, data_begin, file.size(), file_name));
  return tensors;
}

Result<ShardIndex> parse_shard_index(std::string_view text, std::string_view file_name) {
  json::monotonic_resource memory;
  Result<json::value> parsed = parse_json_file(text, kIndexLimits, &memory);
  if (!parsed.has_value()) return corrupt(file_name, parsed.error().message);
  const json::value& document = parsed.value();
  const auto wrong = [&](std::string_view key, const json::value* found,
                         std::string_view expected) {
    return corrupt(file_name, format(key, ": found ", describe(found), ", expected ", expected));
  };
  if (!document.is_object()) {
    return corrupt(file_name, format("found ", describe(&document), ", expected an object"));
  }
  const json::value* weight_map = document.get_object().if_contains("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    return wrong("weight_map", weight_map, "an object of file names");
  }
  ShardIndex index;
  for (const auto& [name, file] : weight_map->get_object()) {
    const std::string tensor(name.data(), name.size());
    if (!file.is_string()) return wrong("weight_map." + tensor, &file, "a file name");
    const json::string& f = file.get_string();
    index.weight_map.emplace_back(tensor, std::string(f.data(), f.size()));
  }
  const json::value* metadata = document.get_object().if_contains("metadata");
  if (metadata == nullptr) return index;
  if (!metadata->is_object()) return wrong("metadata", metadata, "an object");
  if (const json::value* total = metadata->get_object().if_contains("total_size")) {
    json::error_code ec;
    const uint64_t size = total->is_number() ? total->to_number<uint64_t>(ec) : 0;
    if (!total->is_number() || ec) {
      return wrong("metadata.total_size", total, "a number of bytes");
    }
    index.total_size = size;
  }
  return index;
}

std::string safetensors_header(std::span<const TensorHeader> tensors) {
  json::object header;
  uint64_t offset = 0;
  for (const TensorHeader& t : tensors) {
    json::array shape(t.shape.begin(), t.shape.end());
    const std::optional<uint64_t> bytes = payload_bytes(t.dtype, t.shape);
    MR_CHECK(bytes.has_value());
    const uint64_t end = offset + *bytes;
    const std::string_view dtype = dtype_name(t.dtype);
    MR_CHECK(!header.contains(t.name));
    header[t.name] = {{"dtype", json::string_view(dtype.data(), dtype.size())},
                      {"shape", std::move(shape)},
                      {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out(sizeof(uint64_t), '\0');
  const uint64_t length = text.size();
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

}  // namespace millrace
