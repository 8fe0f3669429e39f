#include "kernels/cpu/targets.h"

#include <algorithm>
#include <array>
#include <iterator>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/table.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace millrace::HWY_NAMESPACE {

// Each replaces the operations of one source file by the versions for this target.
void add_products(KernelTable& table);
void add_products_fp4(KernelTable& table);
void add_quantize(KernelTable& table);
void add_keys(KernelTable& table);
void add_norm(KernelTable& table);
void add_attention(KernelTable& table);
void add_index_scores(KernelTable& table);
void add_engram(KernelTable& table);
void add_moe(KernelTable& table);

const KernelTable& kernels() {
  static const KernelTable kTable = [] {
    KernelTable table = ref_kernels();  // what is not replaced stays: it is scalar everywhere
    table.name = hwy::TargetName(HWY_TARGET);
    add_products(table);
    add_products_fp4(table);
    add_quantize(table);
    add_keys(table);
    add_norm(table);
    add_attention(table);
    add_index_scores(table);
    add_engram(table);
    add_moe(table);
    return table;
  }();
  return kTable;
}

}  // namespace millrace::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {
namespace {

struct Target {
  int64_t bit;
  std::string_view name;  // Highway knows only those of its own architecture
  const KernelTable& (*kernels)();
};

// Best first. A target that this build lacks is null, or stands for another one (the fallback).
constexpr Target kTargets[] = {
    {HWY_AVX3, "AVX3", HWY_CHOOSE_AVX3(kernels)},
    {HWY_AVX2, "AVX2", HWY_CHOOSE_AVX2(kernels)},
    {HWY_SSE4, "SSE4", HWY_CHOOSE_SSE4(kernels)},
    {HWY_NEON, "NEON", HWY_CHOOSE_NEON(kernels)},
    {HWY_EMU128, "EMU128", HWY_CHOOSE_FALLBACK(kernels)},
};

struct Tables {
  const KernelTable* tables[std::size(kTargets)];
  size_t count = 0;
};

int64_t supported_targets() {
  return HWY_TARGETS & (HWY_SUPPORTED_TARGETS | HWY_STATIC_TARGET);
}

Tables supported_tables() {
  Tables result;
  for (const Target& target : kTargets) {
    if (supported_targets() & target.bit) result.tables[result.count++] = &target.kernels();
  }
  return result;
}

bool equal_but_for_case(std::string_view a, std::string_view b) {
  const auto upper = [](char c) { return 'a' <= c && c <= 'z' ? char(c - 'a' + 'A') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return upper(x) == upper(y); });
}

}  // namespace

std::span<const KernelTable* const> fast_kernels() {
  static const Tables kTables = supported_tables();
  return {kTables.tables, kTables.count};
}

std::span<const KernelTarget> kernel_targets() {
  static const auto kAnswer = [] {
    std::array<KernelTarget, std::size(kTargets)> targets;
    for (size_t i = 0; i < targets.size(); ++i) {
      targets[i] = {kTargets[i].name, (HWY_TARGETS & kTargets[i].bit) != 0,
                    (supported_targets() & kTargets[i].bit) != 0};
    }
    return targets;
  }();
  return kAnswer;
}

const KernelTable* find_kernels(std::string_view name) {
  if (name.empty()) return fast_kernels().front();
  if (equal_but_for_case(name, ref_kernels().name)) return &ref_kernels();
  for (const KernelTable* table : fast_kernels()) {
    if (equal_but_for_case(name, table->name)) return table;
  }
  return nullptr;
}

}  // namespace millrace
#endif
