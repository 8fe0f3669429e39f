// Prints the numerics digest (kernels/kernels.h) of the reference and of every table that this
// machine runs, one line each; fails where two differ.

#include <cinttypes>
#include <cstdio>

#include "kernels/kernels.h"
#include "sys/fp_environment.h"

int main() {
  using namespace millrace;
  ScopedFpEnvironment environment;
  ThreadPool pool(2);
  KernelContext ctx(pool);
  const uint64_t reference = numerics_digest(ref_kernels(), ctx);
  std::printf("%016" PRIx64 " ref\n", reference);
  bool same = true;
  for (const KernelTable* table : fast_kernels()) {
    const uint64_t digest = numerics_digest(*table, ctx);
    std::printf("%016" PRIx64 " %.*s\n", digest, int(table->name.size()), table->name.data());
    same = same && digest == reference;
  }
  return same ? 0 : 1;
}
