#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

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

 private:
  void ask_one_by_one();

  size_t page_bytes_;
  bool at_once_ = true;  // until the kernel refuses
  std::vector<iovec> parts_;
};

}  // namespace millrace
