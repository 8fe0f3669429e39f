#include "inspect_machine.h"

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "engine/loaded_model.h"
#include "sys/cgroup.h"
#include "sys/memory.h"
#include "sys/thread_plan.h"
#include "sys/topology.h"

namespace millrace {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown";
}

struct Table {
  std::string_view name;
  std::string numerics_id;
};

// What cannot be tried on this machine, and why.
struct Untested {
  std::string what, why;
};

struct Machine {
  std::string cpu = cpu_name();
  std::optional<Topology> topology;  // none: the system does not tell
  CgroupLimits limits = read_cgroup_limits();
  int64_t memory_bytes = memory_limit_bytes();
  int64_t memory_available_bytes = millrace::memory_available_bytes();
  PageModes pages = read_page_modes();
  ThreadPlan threads = plan_threads({});
  ThreadPlan serve_threads = plan_threads({.num_threads = 0, .serves = true});
  std::vector<Table> tables;
  std::vector<Untested> untested;
};

bool has_huge_pages(const PageModes& pages) {
  return pages.transparent_huge_pages == "always" || pages.transparent_huge_pages == "madvise";
}

std::vector<Untested> untested_here(const Machine& machine) {
  std::vector<Untested> untested;
  for (const KernelTarget& target : kernel_targets()) {
    if (!target.is_compiled) {
      untested.push_back({format("kernels ", target.name), "this build has none"});
    } else if (!target.is_supported) {
      untested.push_back(
          {format("kernels ", target.name), "this processor lacks the instructions"});
    }
  }
  if (machine.threads.memory_nodes.size() < 2) {
    const bool has_several = machine.topology && machine.topology->num_allowed_nodes() > 1;
    untested.push_back({"threads and cache at several memory nodes",
                        has_several ? "there are too few threads"
                                    : "this process has processors at one"});
  }
  if (!has_huge_pages(machine.pages)) {
    untested.push_back({"huge pages", machine.pages.transparent_huge_pages.empty()
                                          ? "this kernel has none"
                                          : "they are switched off"});
  }
  untested.push_back({"GPU", "this build computes on processors only"});
  return untested;
}

Machine look() {
  Machine machine;
  Result<Topology> topology = read_topology();
  if (topology.has_value()) machine.topology = std::move(topology.value());
  for (const KernelTable* table : fast_kernels()) {
    machine.tables.push_back({table->name, numerics_id_here(*table)});
  }
  machine.tables.push_back({ref_kernels().name, numerics_id_here(ref_kernels())});
  machine.untested = untested_here(machine);
  return machine;
}

std::string counted(int64_t count, std::string_view noun) {
  return format(count, " ", noun, count == 1 ? "" : "s");
}

// 33554432 -> "32 MiB"; bytes if it is no whole number of them.
std::string size_text(int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair(30, "GiB"), {20, "MiB"}, {10, "KiB"}}) {
    const int64_t size = int64_t{1} << shift;
    if (bytes >= size && bytes % size == 0) return format(bytes / size, " ", unit);
  }
  return format(grouped(bytes), " bytes");
}

void print_topology(const Topology& topology, std::ostream& out) {
  out << "cores    " << counted(topology.num_cores, "core") << " in "
      << counted(topology.num_packages, "package") << ", "
      << counted(topology.num_cpus, "hardware thread") << "; this process may use "
      << counted(int64_t(topology.allowed_cores.size()), "core") << ", "
      << counted(topology.num_allowed_cpus(), "hardware thread") << "\n";
  for (const CacheKind& cache : topology.caches) {
    out << "cache    L" << cache.level << ": " << cache.count << " x " << size_text(cache.bytes)
        << ", each for " << counted(cache.num_cpus_each, "hardware thread") << "\n";
  }
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    const auto is_here = [&](const Core& core) { return core.node == int(i); };
    out << "node     " << topology.nodes[i].os_id << ": " << grouped(topology.nodes[i].bytes)
        << " bytes, "
        << counted(
               std::count_if(topology.allowed_cores.begin(), topology.allowed_cores.end(), is_here),
               "core")
        << " of this process\n";
  }
}

void print_pages(const PageModes& pages, std::ostream& out) {
  out << "pages    " << size_text(pages.page_bytes) << "; ";
  if (pages.transparent_huge_pages.empty()) {
    out << "no transparent huge pages";
  } else {
    out << "transparent huge pages of " << size_text(pages.huge_page_bytes) << ": "
        << pages.transparent_huge_pages << (has_huge_pages(pages) ? " (asked for)" : "");
  }
  out << "; " << pages.pool_pages << " in the pool of huge pages (unused)\n";
}

void print_threads(const ThreadPlan& plan, std::string_view who, std::ostream& out) {
  out << "threads  " << plan.num_threads << who << ": " << plan.reason << "\n";
}

void print_placement(const ThreadPlan& plan, const Topology& topology, std::ostream& out) {
  if (plan.nodes.empty()) {
    out << "placed   threads and memory where the system likes: all at one memory node\n";
    return;
  }
  for (size_t begin = 0, end = 0; begin < plan.nodes.size(); begin = end) {
    while (end < plan.nodes.size() && plan.nodes[end] == plan.nodes[begin]) ++end;
    out << "placed   " << counted(int64_t(end - begin), "thread") << " at memory node "
        << topology.nodes[size_t(plan.nodes[begin])].os_id << "\n";
  }
  out << "placed   the state of sequences spread over these nodes, weights where they are first "
         "read\n";
}

void write_threads(std::string_view name, const ThreadPlan& plan, JsonWriter& json) {
  json.key(name).begin_object().member("count", plan.num_threads).member("reason", plan.reason);
  json.member("nodes", plan.nodes).end_object();
}

void write_topology(const Topology& topology, JsonWriter& json) {
  json.member("packages", topology.num_packages).member("cores", topology.num_cores);
  json.member("cpus", topology.num_cpus);
  json.member("allowed_cores", int64_t(topology.allowed_cores.size()));
  json.member("allowed_cpus", topology.num_allowed_cpus());
  json.key("caches").begin_array();
  for (const CacheKind& cache : topology.caches) {
    json.begin_object().member("level", cache.level).member("bytes", cache.bytes);
    json.member("count", cache.count).member("cpus_each", cache.num_cpus_each).end_object();
  }
  json.end_array().key("nodes").begin_array();
  for (const MemoryNode& node : topology.nodes) {
    json.begin_object().member("id", node.os_id).member("bytes", node.bytes).end_object();
  }
  json.end_array();
}

template <class T>
void write_limit(std::string_view name, const std::optional<T>& limit, JsonWriter& json) {
  json.key(name);
  if (limit) {
    json.value(*limit);
  } else {
    json.null();
  }
}

}  // namespace

std::string numerics_id_here(const KernelTable& table) {
  ThreadPool pool(1);
  KernelContext ctx(pool);
  return numerics_id(numerics_digest(table, ctx), Numerics::kReference);
}

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t at = int64_t(text.size()) - 3; at > 0; at -= 3) text.insert(size_t(at), 1, ',');
  return text;
}

std::string machine_text() {
  const Machine machine = look();
  std::ostringstream out;
  out << "cpu      " << machine.cpu << "\n";
  if (machine.topology) print_topology(*machine.topology, out);
  const CgroupLimits& limits = machine.limits;
  out << "cgroup   processor time: "
      << (limits.cpus ? format(*limits.cpus, " processors") : "no limit") << "; memory: "
      << (limits.memory_bytes ? grouped(*limits.memory_bytes) + " bytes" : "no limit") << "\n";
  out << "memory   " << grouped(machine.memory_bytes) << " bytes, "
      << grouped(machine.memory_available_bytes) << " available\n";
  print_pages(machine.pages, out);
  print_threads(machine.threads, "", out);
  print_threads(machine.serve_threads, " to serve", out);
  if (machine.topology) print_placement(machine.serve_threads, *machine.topology, out);
  for (const Table& table : machine.tables) {
    out << "kernels  " << std::left << std::setw(8) << table.name << " numerics "
        << table.numerics_id << (table.name == find_kernels("")->name ? "  (chosen)" : "") << "\n";
  }
  for (const Untested& untested : machine.untested) {
    out << "untested " << untested.what << ": " << untested.why << "\n";
  }
  return out.str();
}

void write_machine(JsonWriter& json) {
  const Machine machine = look();
  json.member("cpu", machine.cpu).member("threads", machine.threads.num_threads);
  if (machine.topology) write_topology(*machine.topology, json);
  write_limit("cgroup_cpus", machine.limits.cpus, json);
  write_limit("cgroup_memory_bytes", machine.limits.memory_bytes, json);
  json.member("memory_bytes", machine.memory_bytes);
  json.member("memory_available_bytes", machine.memory_available_bytes);
  json.key("pages").begin_object().member("bytes", machine.pages.page_bytes);
  json.member("huge_bytes", machine.pages.huge_page_bytes);
  json.member("transparent", machine.pages.transparent_huge_pages);
  json.member("pool", machine.pages.pool_pages).end_object();
  write_threads("thread_plan", machine.threads, json);
  write_threads("serve_thread_plan", machine.serve_threads, json);
  json.member("isa", find_kernels("")->name).key("tables").begin_array();
  for (const Table& table : machine.tables) {
    json.begin_object().member("isa", table.name).member("numerics_id", table.numerics_id);
    json.end_object();
  }
  json.end_array().key("not_tested_here").begin_array();
  for (const Untested& untested : machine.untested) {
    json.begin_object().member("what", untested.what).member("why", untested.why).end_object();
  }
  json.end_array();
}

}  // namespace millrace
