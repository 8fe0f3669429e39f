#pragma once

#include <cstdint>

namespace millrace {

// What a random number is for. Two uses never share one.
enum class RandomPurpose : uint32_t { kSample = 0 };

// Randomness is a function, not a stream: the number for one place of one answer is the same
// however the request was batched, interrupted or resumed. Uniform in [0, 1), a multiple of 2^-53.
//
//   h = mix(seed + G); h = mix(h ^ (position + G)); h = mix((h ^ (purpose << 32 | choice)) + G)
//
// with G = 0x9e3779b97f4a7c15 (2^64 over the golden ratio) and mix the finaliser of SplitMix64,
// which is a bijection: z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27;
// z *= 0x94d049bb133111eb; z ^= z >> 31. The number is (h >> 11) * 2^-53.
double uniform01(uint64_t seed, int64_t position, uint32_t choice_idx, RandomPurpose purpose);

}  // namespace millrace
