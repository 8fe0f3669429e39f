#pragma once

// Who may ask, and how much.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "net/http.h"

namespace millrace {

// None: no limit.
struct KeyLimits {
  std::optional<int64_t> max_concurrent_requests = {};
  std::optional<int64_t> requests_per_minute = {};
  std::optional<int64_t> tokens_per_minute = {};  // prompt and output
};

struct ApiKey {
  std::string name;    // in logs and metrics
  std::string secret;  // never shown
  KeyLimits limits;
  int32_t priority = 0;  // added to that of its requests
};

// {"keys": [{"name": "ci", "key": "...", "max_concurrent_requests": 8, ...}, ...]}
// There is at least one; names and secrets are there once each. Errors name the entry and its
// field, never a secret.
Result<std::vector<ApiKey>> parse_api_keys(std::string_view json);

// The keys and what they have used. Of the last minute what has ended counts, and what is open.
//
// Threading: one owner, the network's thread.
class KeyRing {
 public:
  explicit KeyRing(std::vector<ApiKey> keys);

  bool is_open() const { return keys_.empty(); }  // nobody needs a key

  // The index of the key that `Authorization: Bearer KEY` or `x-api-key: KEY` names. The time it
  // takes does not tell how much of a key was right.
  std::optional<size_t> find(const net::HttpRequest& request) const;
  const ApiKey& key(size_t idx) const { return keys_[idx]; }

  // Before a request: kExhausted if it would be one too many. Otherwise it is open until leave().
  Status enter(size_t idx, double now_s);
  void leave(size_t idx, int64_t num_tokens, double now_s);
  // When a request that was refused may go better.
  double retry_after_s(size_t idx, double now_s) const;

 private:
  struct Ended {
    double time_s;
    int64_t num_tokens;
  };
  struct Use {
    int64_t num_open = 0;
    std::deque<double> begun_s;  // in the last minute
    std::deque<Ended> ended;     // in the last minute
    int64_t num_tokens = 0;      // of `ended`
  };

  std::vector<ApiKey> keys_;
  std::vector<Use> uses_;
};

}  // namespace millrace
