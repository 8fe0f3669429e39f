#pragma once

#include <gtest/gtest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <thread>

namespace millrace::test {

inline void run_filtered(const sock_fprog& program, const std::function<void()>& function) {
  std::thread([&] {  // a filter is a thread's, and of those that it starts
    ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    function();
  }).join();
}

// Runs the function where a system call has no other result than this error.
inline void run_refusing(long call, int error, const std::function<void()>& function) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | uint32_t(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  run_filtered({std::size(code), code}, function);
}

// Runs the function where io_uring is forbidden, as a container's filter of system calls does.
inline void run_without_io_uring(const std::function<void()>& function) {
  run_refusing(SYS_io_uring_setup, EPERM, function);
}

// Runs the function where no file opens for reads past the page cache, as on a file system that
// has none.
inline void run_without_direct_reads(const std::function<void()>& function) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  run_filtered({std::size(code), code}, function);
}

}  // namespace millrace::test
