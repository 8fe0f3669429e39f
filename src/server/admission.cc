#include "server/admission.h"

#include <utility>

#include "base/format.h"

namespace millrace {

Result<Admission::Ticket> Admission::enter(int64_t estimated_tokens) {
  if (max_open_requests_ && num_open_requests_ >= *max_open_requests_) {
    return Error{Code::kExhausted, format("queue: found ", num_open_requests_,
                                          " requests in the server, expected fewer than ",
                                          *max_open_requests_)};
  }
  // One prompt may be longer than the limit: alone it gets in.
  if (max_queued_tokens_ && num_queued_tokens_ > 0 &&
      num_queued_tokens_ + estimated_tokens > *max_queued_tokens_) {
    return Error{Code::kExhausted, format("queue: found ", num_queued_tokens_,
                                          " prompt tokens waiting, expected at most ",
                                          *max_queued_tokens_, " with this request's")};
  }
  ++num_open_requests_;
  num_queued_tokens_ += estimated_tokens;
  Ticket ticket;
  ticket.admission_ = this;
  ticket.num_tokens_ = estimated_tokens;
  return ticket;
}

Admission::Ticket& Admission::Ticket::operator=(Ticket&& other) noexcept {
  leave();
  admission_ = std::exchange(other.admission_, nullptr);
  num_tokens_ = std::exchange(other.num_tokens_, 0);
  return *this;
}

void Admission::Ticket::correct(int64_t num_tokens) {
  if (admission_ == nullptr) return;
  admission_->num_queued_tokens_ += num_tokens - num_tokens_;
  num_tokens_ = num_tokens;
}

void Admission::Ticket::begin() { correct(0); }

void Admission::Ticket::leave() {
  if (admission_ == nullptr) return;
  begin();
  --admission_->num_open_requests_;
  admission_ = nullptr;
}

}  // namespace millrace
