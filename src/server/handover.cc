#include "server/handover.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "base/sha256.h"

namespace millrace {
namespace {

constexpr size_t kMaxListeners = 16;
constexpr char kTaken = 'T';

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

// Abstract: the first byte of the path is 0.
Address abstract_address(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

bool is_same_user(int peer) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         credentials.uid == geteuid();
}

// One byte, and the descriptors beside it.
bool send_fds(int peer, const std::vector<int>& fds) {
  char byte = char(fds.size());
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxListeners)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(peer, &message, MSG_NOSIGNAL) == 1;
}

std::vector<int> receive_fds(int peer) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxListeners)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  std::vector<int> fds;
  if (recvmsg(peer, &message, MSG_CMSG_CLOEXEC) != 1) return fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const size_t old_count = fds.size();
    fds.resize(old_count + count);
    std::memcpy(fds.data() + old_count, CMSG_DATA(header), count * sizeof(int));
  }
  return fds;
}

}  // namespace

std::string handover_name(const std::string& host, int port, const std::string& unix_socket) {
  const std::string address = unix_socket.empty() ? format(host, '\n', port) : unix_socket;
  return "millrace-" + sha256(address).substr(0, 32);
}

Result<std::unique_ptr<HandoverOffer>> HandoverOffer::create(
    const std::string& name, std::vector<int> fds, std::function<void()> on_taken) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Address address = abstract_address(name);
  if (listener < 0 ||
      bind(listener, reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0 ||
      listen(listener, 8) != 0) {
    const int error = errno;
    if (listener >= 0) close(listener);
    return Error{Code::kUnavailable, format("hand-over socket: ", std::strerror(error))};
  }
  const int wake = eventfd(0, EFD_CLOEXEC);
  if (wake < 0) {
    close(listener);
    return Error{Code::kUnavailable, "hand-over socket: no descriptors left"};
  }
  return std::unique_ptr<HandoverOffer>(
      new HandoverOffer(listener, wake, std::move(fds), std::move(on_taken)));
}

HandoverOffer::HandoverOffer(int listener, int wake, std::vector<int> fds,
                             std::function<void()> on_taken)
    : listener_(listener),
      wake_(wake),
      fds_(std::move(fds)),
      on_taken_(std::move(on_taken)),
      thread_([this] { run(); }) {}

HandoverOffer::~HandoverOffer() {
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof one) != sizeof one) {}  // an eventfd takes it
  thread_.join();
  close(listener_);
  close(wake_);
}

void HandoverOffer::run() {
  for (;;) {
    pollfd waits[] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[1].revents != 0) return;
    if (waits[0].revents == 0) continue;
    const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (peer < 0) continue;
    const bool is_taken = is_same_user(peer) && serve(peer);
    close(peer);
    if (is_taken) {
      on_taken_();
      return;
    }
  }
}

bool HandoverOffer::serve(int peer) {
  if (!send_fds(peer, fds_)) return false;
  for (;;) {
    pollfd waits[] = {{peer, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) return false;
    if (waits[1].revents != 0) return false;
    if (waits[0].revents == 0) continue;
    char byte = 0;
    return read(peer, &byte, 1) == 1 && byte == kTaken;  // otherwise it has gone
  }
}

Result<Takeover> Takeover::ask(const std::string& name) {
  const int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (peer < 0) return Error{Code::kUnavailable, "hand-over socket: no descriptors left"};
  const Address address = abstract_address(name);
  if (connect(peer, reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0) {
    close(peer);
    return Error{Code::kNotFound, "nobody to take over from"};
  }
  std::vector<int> fds = receive_fds(peer);
  if (fds.empty()) {
    close(peer);
    return Error{Code::kUnavailable, "the server that has the address gave no sockets; does it run "
                                     "as another user?"};
  }
  return Takeover(peer, std::move(fds));
}

Takeover::Takeover(Takeover&& other) noexcept
    : peer_(std::exchange(other.peer_, -1)), fds_(std::move(other.fds_)) {
  other.fds_.clear();
}

Takeover::~Takeover() {
  for (int fd : fds_) close(fd);
  if (peer_ >= 0) close(peer_);
}

std::vector<int> Takeover::take_fds() { return std::exchange(fds_, {}); }

void Takeover::finish() {
  if (send(peer_, &kTaken, 1, MSG_NOSIGNAL) != 1) {}  // it has gone already: nothing to stop
}

}  // namespace millrace
