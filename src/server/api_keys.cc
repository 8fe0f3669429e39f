#include "server/api_keys.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/sha256.h"
#include "chat/json_node.h"

namespace millrace {
namespace {

using Kind = JsonValue::Kind;

constexpr double kMinute = 60;
constexpr int kMaxKeyPriority = 8;

Status read_limit(const JsonNode& node, std::optional<int64_t>& limit) {
  ASSIGN_OR_RETURN(limit, read_number<int64_t>(node, 1));
  return {};
}

Result<ApiKey> read_key(const JsonNode& entry) {
  RETURN_IF_ERROR(expect_object(entry));
  RETURN_IF_ERROR(refuse_repeated(entry));
  ApiKey key;
  ASSIGN_OR_RETURN(key.name, read_string(entry.at("name")));
  if (key.name.empty()) return refuse(entry.at("name"), "a name");
  const JsonNode secret = entry.at("key");
  if (!secret.is(Kind::kString) || secret.value->text.empty()) {
    return refuse_reason(secret, "expected a string of at least one character");
  }
  key.secret = secret.value->text;
  RETURN_IF_ERROR(
      read_limit(entry.at("max_concurrent_requests"), key.limits.max_concurrent_requests));
  RETURN_IF_ERROR(read_limit(entry.at("requests_per_minute"), key.limits.requests_per_minute));
  RETURN_IF_ERROR(read_limit(entry.at("tokens_per_minute"), key.limits.tokens_per_minute));
  ASSIGN_OR_RETURN(const std::optional<int32_t> rank,
                   read_number<int32_t>(entry.at("priority"), -kMaxKeyPriority, kMaxKeyPriority));
  key.priority = rank.value_or(0);
  for (const std::string& name : entry.value->keys) {
    if (name != "name" && name != "key" && name != "max_concurrent_requests" &&
        name != "requests_per_minute" && name != "tokens_per_minute" && name != "priority") {
      return refuse_reason(entry, format("unknown field ", name));
    }
  }
  return key;
}

// Equal digests mean equal texts, and comparing digests says nothing about the texts.
bool is_same_secret(const std::string& digest_a, const std::string& digest_b) {
  unsigned difference = 0;
  for (size_t i = 0; i < digest_a.size(); ++i) difference |= unsigned(digest_a[i] ^ digest_b[i]);
  return difference == 0;
}

Error over_limit(const ApiKey& key, std::string_view what, int64_t limit) {
  return {Code::kExhausted, format("API key ", key.name, ": found ", limit, ' ', what,
                                   ", which is its limit, expected fewer")};
}

}  // namespace

Result<std::vector<ApiKey>> parse_api_keys(std::string_view json) {
  ASSIGN_OR_RETURN(const JsonValue root, parse_json(json));
  if (!root.is(Kind::kObject)) {
    return Error{Code::kInvalidArgument, "found no object, expected {\"keys\": [...]}"};
  }
  const JsonNode node{&root, ""};
  RETURN_IF_ERROR(refuse_repeated(node));
  const JsonNode list = node.at("keys");
  // A server without a key is open to everybody: nobody asks for that with a file of keys.
  if (!list.is(Kind::kArray) || list.value->items.empty()) {
    return refuse(list, "an array of at least one key");
  }
  std::vector<ApiKey> keys;
  for (size_t i = 0; i < list.value->items.size(); ++i) {
    ASSIGN_OR_RETURN(ApiKey key, read_key(list.at(i)));
    for (const ApiKey& other : keys) {
      if (other.name == key.name) return refuse(list.at(i).at("name"), "a name of its own");
      if (other.secret == key.secret) {
        return refuse_reason(list.at(i).at("key"), format("is the same as that of ", other.name));
      }
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

KeyRing::KeyRing(std::vector<ApiKey> keys) : keys_(std::move(keys)), uses_(keys_.size()) {
  for (ApiKey& key : keys_) key.secret = sha256(key.secret);
}

std::optional<size_t> KeyRing::find(const net::HttpRequest& request) const {
  std::string_view presented;
  if (const std::string* value = request.header("authorization")) {
    constexpr std::string_view kBearer = "bearer ";
    if (value->size() > kBearer.size()) {
      std::string scheme = value->substr(0, kBearer.size());
      for (char& c : scheme) c = char(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
      if (scheme == kBearer) presented = std::string_view(*value).substr(kBearer.size());
    }
  }
  if (presented.empty()) {
    const std::string* value = request.header("x-api-key");
    if (value == nullptr || value->empty()) return std::nullopt;
    presented = *value;
  }
  const std::string digest = sha256(std::string(presented));
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (is_same_secret(keys_[i].secret, digest)) found = i;
  }
  return found;
}

Status KeyRing::enter(size_t idx, double now_s) {
  const ApiKey& key = keys_[idx];
  Use& use = uses_[idx];
  while (!use.begun_s.empty() && use.begun_s.front() <= now_s - kMinute) use.begun_s.pop_front();
  while (!use.ended.empty() && use.ended.front().time_s <= now_s - kMinute) {
    use.num_tokens -= use.ended.front().num_tokens;
    use.ended.pop_front();
  }
  const KeyLimits& limits = key.limits;
  if (limits.max_concurrent_requests && use.num_open >= *limits.max_concurrent_requests) {
    return over_limit(key, "requests at a time", *limits.max_concurrent_requests);
  }
  if (limits.requests_per_minute && int64_t(use.begun_s.size()) >= *limits.requests_per_minute) {
    return over_limit(key, "requests in a minute", *limits.requests_per_minute);
  }
  if (limits.tokens_per_minute && use.num_tokens >= *limits.tokens_per_minute) {
    return over_limit(key, "tokens in a minute", *limits.tokens_per_minute);
  }
  ++use.num_open;
  if (limits.requests_per_minute) use.begun_s.push_back(now_s);
  return {};
}

double KeyRing::retry_after_s(size_t idx, double now_s) const {
  const KeyLimits& limits = keys_[idx].limits;
  const Use& use = uses_[idx];
  double wait_s = 1;
  if (limits.requests_per_minute && int64_t(use.begun_s.size()) >= *limits.requests_per_minute) {
    wait_s = std::max(wait_s, use.begun_s.front() + kMinute - now_s);
  }
  if (limits.tokens_per_minute && use.num_tokens >= *limits.tokens_per_minute) {
    wait_s = std::max(wait_s, use.ended.front().time_s + kMinute - now_s);
  }
  return wait_s;
}

void KeyRing::leave(size_t idx, int64_t num_tokens, double now_s) {
  Use& use = uses_[idx];
  --use.num_open;
  if (!keys_[idx].limits.tokens_per_minute || num_tokens == 0) return;
  use.ended.push_back({now_s, num_tokens});
  use.num_tokens += num_tokens;
}

}  // namespace millrace
