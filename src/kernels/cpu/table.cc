#include "kernels/cpu/targets.h"

#include <algorithm>
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
  const KernelTable& (*kernels)();
};

// Best first. A target that this build lacks is null, or stands for another one (the fallback).
constexpr Target kTargets[] = {
    {HWY_AVX3, HWY_CHOOSE_AVX3(kernels)},
    {HWY_AVX2, HWY_CHOOSE_AVX2(kernels)},
    {HWY_SSE4, HWY_CHOOSE_SSE4(kernels)},
    {HWY_NEON, HWY_CHOOSE_NEON(kernels)},
    {HWY_EMU128, HWY_CHOOSE_FALLBACK(kernels)},
};

struct Tables {
  const KernelTable* tables[std::size(kTargets)];
  size_t count = 0;
};

Tables supported_tables() {
  const int64_t supported = HWY_TARGETS & (HWY_SUPPORTED_TARGETS | HWY_STATIC_TARGET);
  Tables result;
  for (const Target& target : kTargets) {
    if (supported & target.bit) result.tables[result.count++] = &target.kernels();
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
