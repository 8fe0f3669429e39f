#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"

namespace millrace {

// How many requests, and how much of prompts that have no first token yet, the server holds. Asked
// before a body is parsed, so that a request too many costs nothing.
//
// Threading: one owner, the network's thread.
class Admission {
 public:
  // None: no limit.
  Admission(std::optional<int64_t> max_open_requests, std::optional<int64_t> max_queued_tokens)
      : max_open_requests_(max_open_requests), max_queued_tokens_(max_queued_tokens) {}

  // Taken by a request, gives back everything when it is destroyed.
  class Ticket {
   public:
    Ticket() = default;
    ~Ticket() { leave(); }
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;

    void correct(int64_t num_tokens);  // the estimate was this, in truth
    void begin();                      // the first token is there: nothing is queued any more
    void leave();

   private:
    friend class Admission;
    Admission* admission_ = nullptr;
    int64_t num_tokens_ = 0;
  };

  // kExhausted: one too many.
  Result<Ticket> enter(int64_t estimated_tokens);

  int64_t num_open_requests() const { return num_open_requests_; }
  int64_t num_queued_tokens() const { return num_queued_tokens_; }

 private:
  std::optional<int64_t> max_open_requests_, max_queued_tokens_;
  int64_t num_open_requests_ = 0;
  int64_t num_queued_tokens_ = 0;
};

}  // namespace millrace
