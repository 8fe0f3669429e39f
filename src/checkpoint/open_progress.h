#pragma once

#include <cstdint>
#include <functional>

namespace millrace {

// Called after each shard whose header has been read.
using OpenProgress = std::function<void(int64_t num_shards_done, int64_t num_shards)>;

}  // namespace millrace
