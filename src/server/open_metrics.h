#pragma once

#include <string>
#include <vector>

#include <prometheus/metric_family.h>

namespace millrace {

// Metrics in the OpenMetrics text format 1.0: a counter's family is named without `_total`, and the
// text ends with a line that says so.
std::string open_metrics_text(const std::vector<prometheus::MetricFamily>& families);

}  // namespace millrace
