#include "bench/timed_kernels.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>

#include "base/format.h"

namespace millrace {
namespace {

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

KernelTable inner_table;
std::map<const void*, NamedWeight> named_weights;  // by their begin
std::map<std::string, OperationTime> times;
OperationTime* last = nullptr;  // that ended
int64_t last_end_ns = 0;

std::string name_of(const void* weight) {
  const auto after = named_weights.upper_bound(weight);
  if (after == named_weights.begin()) return "";
  const NamedWeight& named = std::prev(after)->second;
  const auto* begin = static_cast<const std::byte*>(named.begin);
  return weight < begin + named.bytes ? named.name : "";
}

std::string sizes(int64_t n, int64_t k) { return format(n, 'x', k); }

// What an operation does, from its arguments; products say more than their kernel.
template <class... Args>
OperationTime work_of(const char* kernel, const Args&...) {
  return {.kernel = kernel};
}

OperationTime work_of(const char* kernel, const Matrix<const float>& x, const Fp8Matrix& w,
                      const Matrix<float>&, Rounding) {
  const double weights = double(w.n) * double(w.k);
  return {.kernel = kernel,
          .weight = name_of(w.codes),
          .sizes = sizes(w.n, w.k),
          .flops = 2 * weights * double(x.shape[0]),
          .bytes = weights * (1 + 1.0 / 1024)};
}

OperationTime work_of(const char* kernel, const Matrix<const float>& x, const Bf16Matrix& w,
                      const Matrix<float>&, Rounding) {
  const double weights = double(w.n) * double(w.k);
  return {.kernel = kernel,
          .weight = name_of(w.data),
          .sizes = sizes(w.n, w.k),
          .flops = 2 * weights * double(x.shape[0]),
          .bytes = weights * 2};
}

template <class Input>
OperationTime work_of(const char* kernel, const Input&, const RowGroups& groups,
                      const Matrix<float>&, Rounding) {
  OperationTime work{.kernel = kernel, .weight = "ffn.experts"};
  for (const RowGroups::Group& group : groups.groups) {
    const double weights = double(group.w.n) * double(group.w.k);
    work.sizes = sizes(group.w.n, group.w.k);
    work.flops += 2 * weights * double(group.end - group.begin);
    if (group.end > group.begin) work.bytes += weights * (0.5 + 1.0 / 32);
  }
  return work;
}

void note(const OperationTime& work, int64_t begin_ns, int64_t end_ns) {
  if (last != nullptr) last->after_ns += begin_ns - last_end_ns;
  OperationTime& time = times.try_emplace(work.name(), work).first->second;
  if (time.num_calls > 0) {
    time.flops += work.flops;
    time.bytes += work.bytes;
  }
  ++time.num_calls;
  time.ns += end_ns - begin_ns;
  last = &time;
  last_end_ns = end_ns;
}

template <auto kMember>
struct Timed;

template <class... Args, void (*KernelTable::*kMember)(KernelContext&, Args...)>
struct Timed<kMember> {
  static inline const char* name = "";
  static void call(KernelContext& ctx, Args... args) {
    const int64_t begin = now_ns();
    (inner_table.*kMember)(ctx, args...);
    const int64_t end = now_ns();
    note(work_of(name, args...), begin, end);
  }
};

template <auto kMember>
void wrap(KernelTable& table, const char* name) {
  Timed<kMember>::name = name;
  table.*kMember = Timed<kMember>::call;
}

}  // namespace

std::string OperationTime::name() const {
  std::string all = kernel;
  for (const std::string& part : {weight, sizes}) {
    if (!part.empty()) all += " " + part;
  }
  return all;
}

const KernelTable& timed_kernels(const KernelTable& inner, std::vector<NamedWeight> weights) {
  static KernelTable table;
  inner_table = table = inner;
  named_weights.clear();
  for (NamedWeight& weight : weights) named_weights[weight.begin] = std::move(weight);
  (void)take_operation_times();
#define MILLRACE_WRAP(operation) wrap<&KernelTable::operation>(table, #operation)
  MILLRACE_WRAP(matmul_fp8);
  MILLRACE_WRAP(matmul_fp4);
  MILLRACE_WRAP(matmul_fp4_f32);
  MILLRACE_WRAP(matmul_bf16);
  MILLRACE_WRAP(quantize_fp8);
  MILLRACE_WRAP(fake_quantize_fp8);
  MILLRACE_WRAP(fake_quantize_mxfp4);
  MILLRACE_WRAP(pack_keys);
  MILLRACE_WRAP(unpack_keys);
  MILLRACE_WRAP(rms_norm);
  MILLRACE_WRAP(rope);
  MILLRACE_WRAP(hc_mixes);
  MILLRACE_WRAP(hc_collapse);
  MILLRACE_WRAP(hc_expand);
  MILLRACE_WRAP(hc_mean);
  MILLRACE_WRAP(attention);
  MILLRACE_WRAP(compress_pairs);
  MILLRACE_WRAP(index_scores);
  MILLRACE_WRAP(gather_fp8);
  MILLRACE_WRAP(engram_update);
  MILLRACE_WRAP(route);
  MILLRACE_WRAP(swiglu);
  MILLRACE_WRAP(combine_experts);
#undef MILLRACE_WRAP
  return table;
}

std::vector<OperationTime> take_operation_times() {
  const int64_t now = now_ns();
  if (last != nullptr) last->after_ns += now - last_end_ns;
  std::vector<OperationTime> list;
  for (auto& [name, time] : times) list.push_back(std::move(time));
  times.clear();
  last = &(times["start"] = {.kernel = "start"});
  last_end_ns = now;
  std::sort(list.begin(), list.end(), [](const OperationTime& a, const OperationTime& b) {
    return a.ns + a.after_ns > b.ns + b.after_ns;
  });
  return list;
}

}  // namespace millrace
