#pragma once

// Deliberate mistakes that show that the contract tests notice one: `mutated("rms_norm")` is true
// only in the mutation build, while the mistake of that name is being tried. A kernel then swaps
// two of its additions (or, where it has none, breaks a rounding rule). The name is the operation,
// or operation/part. tests/mutation.sh tries every name that occurs in kernels/cpu; the tests of
// operation `rms_norm` are those with `RmsNorm` in their names. Mistakes that begin with `ragged_`
// mix up rows of different sequences or experts, and the tests of ragged batches notice them.
//
// Elsewhere it is a constant, and the mistakes leave no code behind.

#include <cstdint>

namespace millrace {

// A name by its hash, so that asking is one comparison.
class MutationName {
 public:
  constexpr MutationName(const char* name) {
    for (; *name != 0; ++name) hash_ = (hash_ ^ uint8_t(*name)) * 0x100000001b3ull;
  }
  bool operator==(const MutationName&) const = default;

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

#ifdef MILLRACE_MUTATION
extern MutationName active_mutation;  // tests/mutation_main.cc
inline bool mutated(MutationName name) { return name == active_mutation; }
#else
consteval bool mutated(MutationName /*name*/) { return false; }
#endif

}  // namespace millrace
