#pragma once

// Errors of the outside world: files, requests, peers. A function that can fail returns `Status`
// or `Result<T>`; the caller must look. No exceptions cross our interfaces.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace millrace {

enum class Code {
  kInvalidArgument,  // the caller asked for something that makes no sense
  kNotFound,         // a named thing does not exist
  kUnimplemented,    // it would make sense, and this program does not have it
  kCorrupt,          // data contradicts itself or its format
  kExhausted,        // a limit or a capacity was reached
  kUnavailable,      // may work later, or elsewhere
  kCancelled,        // the caller gave up
};

std::string_view code_name(Code code);

// The message names the thing, what was found and what was expected.
struct Error {
  Code code;
  std::string message;
};

// Success, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_.has_value(); }
  const Error& error() const {
    MR_CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

// A value, or an Error. Member names follow std::expected.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}
  bool has_value() const { return v_.index() == 0; }
  T& value() {
    MR_CHECK(has_value());
    return *std::get_if<0>(&v_);
  }
  const T& value() const {
    MR_CHECK(has_value());
    return *std::get_if<0>(&v_);
  }
  const Error& error() const {
    MR_CHECK(!has_value());
    return *std::get_if<1>(&v_);
  }

 private:
  std::variant<T, Error> v_;
};

namespace status_internal {
inline const Error& error_of(const Status& s) { return s.error(); }
template <class T>
const Error& error_of(const Result<T>& r) {
  return r.error();
}
inline bool succeeded(const Status& s) { return s.ok(); }
template <class T>
bool succeeded(const Result<T>& r) {
  return r.has_value();
}
}  // namespace status_internal

}  // namespace millrace

#define MR_CONCAT_INNER(a, b) a##b
#define MR_CONCAT(a, b) MR_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                                          \
  do {                                                                                       \
    const auto& mr_status = (expression);                                                    \
    if (!::millrace::status_internal::succeeded(mr_status))                                  \
      return ::millrace::Error(::millrace::status_internal::error_of(mr_status));            \
  } while (false)

// ASSIGN_OR_RETURN(const Config config, parse(text));
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_INNER(MR_CONCAT(mr_result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_INNER(result, declaration, expression)     \
  auto result = (expression);                                       \
  if (!result.has_value()) return ::millrace::Error(result.error()); \
  declaration = std::move(result.value())
