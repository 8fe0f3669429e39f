#pragma once

// Deliberate mistakes that show that the contract tests notice one: `mutated("rms_norm")` is true
// only in the mutation build, while the mistake of that name is being tried. A kernel then swaps
// two of its additions (or, where it has none, breaks a rounding rule). The name is the operation,
// or operation/part; tests/mutation.sh tries every name that occurs in kernels/cpu.
//
// Elsewhere it is a constant, and the mistakes leave no code behind.

namespace millrace {

#ifdef MILLRACE_MUTATION
bool mutated(const char* name);
#else
consteval bool mutated(const char* /*name*/) { return false; }
#endif

}  // namespace millrace
