#pragma once

// Passes listening sockets to the process that takes this one's place. The sockets stay open all
// the while, so no connection is refused or lost: until the newcomer says that it accepts, this
// process does, and what waits to be accepted waits in the socket that both have.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace millrace {

// The name under which a server of an address offers its sockets: of the abstract kind, so nothing
// is left behind in the file system.
std::string handover_name(const std::string& host, int port, const std::string& unix_socket);

// Offers the sockets to processes of the same user.
class HandoverOffer {
 public:
  // The descriptors must stay open for as long as this is there. `on_taken` is called by a thread
  // of this class, once, when a process has taken over.
  static Result<std::unique_ptr<HandoverOffer>> create(const std::string& name,
                                                       std::vector<int> fds,
                                                       std::function<void()> on_taken);
  ~HandoverOffer();  // ends the thread
  HandoverOffer(const HandoverOffer&) = delete;
  HandoverOffer& operator=(const HandoverOffer&) = delete;

 private:
  HandoverOffer(int listener, int wake, std::vector<int> fds, std::function<void()> on_taken);
  void run();
  bool serve(int peer);  // true: it has taken over

  const int listener_, wake_;
  const std::vector<int> fds_;
  const std::function<void()> on_taken_;
  std::thread thread_;
};

// The newcomer's side.
class Takeover {
 public:
  // kNotFound: nobody has the address.
  static Result<Takeover> ask(const std::string& name);
  ~Takeover();
  Takeover(Takeover&& other) noexcept;
  Takeover& operator=(Takeover&&) = delete;

  std::vector<int> take_fds();  // now the caller's
  // The newcomer accepts: the other may stop. Without this nothing changes for it.
  void finish();

 private:
  Takeover(int peer, std::vector<int> fds) : peer_(peer), fds_(std::move(fds)) {}

  int peer_;
  std::vector<int> fds_;
};

}  // namespace millrace
