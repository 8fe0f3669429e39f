#pragma once

// JSON files of a checkpoint, read whole into Boost's document tree. Stricter than the library: a
// key that appears twice in one object is refused, where a tree would silently keep the last.

#include <boost/json/storage_ptr.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

struct JsonFileLimits {
  size_t max_bytes;
  size_t max_depth;  // of nested objects and lists
};

// Messages say at which byte what was found; the caller adds the file. The tree lives in `memory`.
Result<boost::json::value> parse_json_file(std::string_view text, const JsonFileLimits& limits,
                                           boost::json::storage_ptr memory = {});

// A value for a message: its JSON, cut when it is long. Null: "nothing".
std::string describe(const boost::json::value* value);

}  // namespace millrace
