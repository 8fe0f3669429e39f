#pragma once

// Structs of the C interface whose size is their version: a program that was compiled with another
// version of the header has another idea of it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/format.h"
#include "base/status.h"

namespace millrace {

inline Error invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

template <class T>
Status check_pointer(std::string_view name, const T* pointer) {
  if (pointer != nullptr) return {};
  return invalid(format(name, ": found NULL, expected a pointer"));
}

// Every version of every struct has a size in steps of this, without padding at its end: a field
// that a later version adds never lies where an older program left something undefined.
inline constexpr size_t kSizeStep = 8;
inline constexpr size_t kMaxStructSize = 4096;

inline Status check_size(std::string_view name, size_t size) {
  if (size >= kSizeStep && size <= kMaxStructSize && size % kSizeStep == 0) return {};
  return invalid(format(name, ".struct_size: found ", size, ", expected sizeof the struct, as its ",
                        "init function sets it"));
}

// `size` bytes of `to` become those of `from`, and zeros where it has no more.
template <class T>
void copy_struct(const T& from, T* to, size_t size) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % kSizeStep == 0);
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &from, std::min(size, sizeof(T)));
  to->struct_size = uint32_t(size);
}

// What the caller gave, over the defaults where it is older than the library.
template <class T>
Result<T> read_struct(std::string_view name, const T* given, const T& defaults) {
  RETURN_IF_ERROR(check_pointer(name, given));
  const size_t size = given->struct_size;
  RETURN_IF_ERROR(check_size(name, size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return invalid(format(name, ": found a value in byte ", i, ", expected zeros from ",
                            sizeof(T), ": this library is older than the program"));
    }
  }
  T value = defaults;
  std::memcpy(static_cast<void*>(&value), given, std::min(size, sizeof(T)));
  return value;
}

// Whether there is a struct to write to; write_struct() then cannot fail.
template <class T>
Status check_output(std::string_view name, const T* out) {
  RETURN_IF_ERROR(check_pointer(name, out));
  return check_size(name, out->struct_size);
}

template <class T>
void write_struct(const T& value, T* out) {
  copy_struct(value, out, out->struct_size);
}

}  // namespace millrace
