#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "net/http.h"
#include "openai/completion_response.h"
#include "server/call.h"

namespace millrace {

enum class Access {
  kOpen,    // anybody
  kKey,     // needs a key, where there are some
  kAdmin,   // needs the admin key; without one it is closed
};

struct Route {
  std::string_view method;  // a GET also answers HEAD
  std::string_view path;    // "/v1/models/*": everything below
  Access access;
  std::string_view summary;
  void (*handle)(std::unique_ptr<Call>);

  bool matches(std::string_view path) const;
};

std::span<const Route> routes();

// What monitors and balancers ask for all the time: neither logged nor counted.
bool is_probe(std::string_view path);

// The path that routes know: without the root path, and an alias by its proper name. Null: outside
// the root path.
std::optional<std::string> canonical_path(std::string_view path, std::string_view root_path);

// The route of a request, or why there is none (404, 405, or 501 for what the API has and this
// server has not).
struct FoundRoute {
  const Route* route = nullptr;
  openai::ApiError error;
  std::string allowed_methods;  // of a 405
};
FoundRoute find_route(std::string_view method, std::string_view path);

}  // namespace millrace
