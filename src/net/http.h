#pragma once

// HTTP messages as plain data.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::net {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = "GET";
  std::string path = "/";   // as sent, without the query
  std::string query;        // behind the '?', as sent
  Headers headers;          // names in lower case
  std::string body;
  std::string peer;         // "127.0.0.1:4711", "unix"; of a request that came in

  // The value of the first header of this name, in lower case; null if there is none.
  const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  Headers headers;  // beside Content-Length, Connection and Date
  std::string body;
};

std::string_view reason_phrase(int status);

}  // namespace millrace::net
