#include "server/open_metrics.h"

#include <string_view>

#include <prometheus/text_serializer.h>

namespace millrace {

// The two formats differ in the lines about counters and in the last line; what they have in common
// the library writes.
std::string open_metrics_text(const std::vector<prometheus::MetricFamily>& families) {
  constexpr std::string_view kTotal = "_total";
  const prometheus::TextSerializer serializer;
  std::string text;
  for (const prometheus::MetricFamily& family : families) {
    std::string part = serializer.Serialize({family});
    const std::string& name = family.name;
    if (family.type == prometheus::MetricType::Counter && name.ends_with(kTotal)) {
      const std::string base = name.substr(0, name.size() - kTotal.size());
      for (const char* line : {"# HELP ", "# TYPE "}) {
        const size_t begin = part.find(line + name + " ");
        if (begin == part.npos) continue;
        const size_t name_begin = begin + std::string_view(line).size();
        part.replace(name_begin, name.size(), base);
      }
    }
    text += part;
  }
  return text + "# EOF\n";
}

}  // namespace millrace
