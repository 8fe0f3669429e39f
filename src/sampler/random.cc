#include "sampler/random.h"

namespace millrace {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

double uniform01(uint64_t seed, int64_t position, uint32_t choice_idx, RandomPurpose purpose) {
  uint64_t h = mix(seed + kGolden);
  h = mix(h ^ (uint64_t(position) + kGolden));
  h = mix((h ^ (uint64_t(purpose) << 32 | choice_idx)) + kGolden);
  return double(h >> 11) * 0x1p-53;
}

}  // namespace millrace
