#include "base/status.h"

namespace millrace {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kNotFound: return "not found";
    case Code::kUnimplemented: return "unimplemented";
    case Code::kCorrupt: return "corrupt";
    case Code::kExhausted: return "exhausted";
    case Code::kUnavailable: return "unavailable";
    case Code::kCancelled: return "cancelled";
  }
  check_failed(__FILE__, __LINE__, "unknown Code");
}

}  // namespace millrace
