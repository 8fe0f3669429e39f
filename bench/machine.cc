// What this machine can do, as JSON lines: one per quantity and number of threads. With a file (a
// shard of a checkpoint, say) also how fast its disk is read, past the page cache and from it.
//
// usage: bench-machine [FILE]

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/disk.h"
#include "bench/limits.h"
#include "sys/affinity.h"
#include "sys/unique_fd.h"

namespace millrace {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 30;  // that are read

void print(const char* what, int threads, double value, const char* unit) {
  std::printf(
      "{\"bench\": \"machine\", \"what\": \"%s\", \"threads\": %d, \"value\": %.2f, \"unit\": "
      "\"%s\"}\n",
      what, threads, value, unit);
}

[[noreturn]] void stop(const char* path, const char* what) {
  std::fprintf(stderr, "bench-machine: ");
  std::perror(path);
  std::fprintf(stderr, "bench-machine: cannot %s it\n", what);
  std::exit(1);
}

// From the disk: the page cache is not asked.
void print_disk(const char* path, const char* what, size_t piece_bytes, size_t in_flight) {
  const Result<double> rate = measure_disk({{path}}, piece_bytes, in_flight, kMostFileBytes);
  if (rate.has_value()) return print(what, 1, rate.value(), "GB/s");
  std::fprintf(stderr, "bench-machine: %s\n", rate.error().message.c_str());
  std::exit(1);
}

void print_page_cache(const char* path, int threads) {
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0) stop(path, "open");
  const size_t size = std::min(size_t(status.st_size), kMostFileBytes);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) stop(path, "map");
  ThreadPool pool(threads);
  print("page cache, mapped", threads,
        measure_read(pool, {static_cast<const std::byte*>(data), size}), "GB/s");
  ::munmap(data, size);
}

void run(const char* file) {
  const std::vector<std::byte> memory(size_t{512} << 20, std::byte{1});
  for (int threads = 1; threads <= num_usable_cpus(); threads *= 2) {
    ThreadPool pool(threads);
    print("read", threads, measure_read(pool, memory), "GB/s");
    print("fma", threads, measure_fma(pool), "GFLOP/s");
    print("byte products", threads, measure_byte_products(pool), "GOP/s");
    print("short products", threads, measure_short_products(pool), "GOP/s");
    if (file != nullptr) print_page_cache(file, threads);
  }
  if (file == nullptr) return;
  print_disk(file, "disk, one read at a time", size_t{4} << 20, 1);
  print_disk(file, "disk, 64 reads at a time", size_t{1} << 20, 64);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr, "usage: bench-machine [FILE]\n");
    return 2;
  }
  millrace::run(argc == 2 ? argv[1] : nullptr);
}
