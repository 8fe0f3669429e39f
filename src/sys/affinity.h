#pragma once

#include <vector>

namespace millrace {

// The processors, by the system's numbers, that the calling thread may run on.
std::vector<int> allowed_cpus();

// From now on the calling thread runs on these only. A hint: where the system does not allow it,
// nothing changes. Threads that it creates inherit it.
void bind_thread(const std::vector<int>& cpus);

// How many threads of this process can run at once: allowed_cpus(), lowered to what the cgroup's
// quota amounts to; at least 1.
int num_usable_cpus();

}  // namespace millrace
