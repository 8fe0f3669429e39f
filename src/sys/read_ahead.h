#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

#include "sys/unique_fd.h"

namespace millrace {

// Parts of mapped files that will be read soon, anywhere in them: the kernel is told of many at
// once, and fetches what is not in memory while the caller goes on. A hint; touching the parts one
// by one would wait for the disk each time. Belongs to one thread.
class ReadAhead {
 public:
  ReadAhead();

  // Noted, and perhaps asked for already.
  void add(const void* data, size_t bytes);
  // Asks for all that was added since the last call. Allocates nothing.
  void start();
  // Parts for which start() will ask.
  size_t num_waiting() const { return parts_.size(); }

 private:
  size_t ask_at_once();

  size_t page_bytes_;
  UniqueFd self_;  // this process; none where it cannot be opened
  bool at_once_;   // until the kernel says that it never will
  std::vector<iovec> parts_;
};

}  // namespace millrace
