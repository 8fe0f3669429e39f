// What this machine can do, as JSON lines: one per quantity and number of threads.
//
// usage: bench-machine

#include <cstdio>
#include <vector>

#include "bench/limits.h"

namespace millrace {
namespace {

void print(const char* what, int threads, double value, const char* unit) {
  std::printf(
      "{\"bench\": \"machine\", \"what\": \"%s\", \"threads\": %d, \"value\": %.1f, \"unit\": "
      "\"%s\"}\n",
      what, threads, value, unit);
}

void run() {
  const std::vector<std::byte> memory(size_t{512} << 20, std::byte{1});
  for (int threads = 1; threads <= default_num_threads(); threads *= 2) {
    ThreadPool pool(threads);
    print("read", threads, measure_read(pool, memory), "GB/s");
    print("fma", threads, measure_fma(pool), "GFLOP/s");
    print("byte products", threads, measure_byte_products(pool), "GOP/s");
    print("short products", threads, measure_short_products(pool), "GOP/s");
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char**) {
  if (argc > 1) {
    std::fprintf(stderr, "usage: bench-machine\n");
    return 2;
  }
  millrace::run();
}
