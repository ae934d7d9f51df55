// 16-bit floats and float32, bit by bit, for code that no instruction set is chosen for.
#pragma once
#include <cstdint>
#include <cstring>

namespace unspool {

static inline float float_of_bits(uint32_t word) {
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

static inline uint32_t bits_of_float(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  return word;
}

static inline float bfloat_to_float(uint16_t b) { return float_of_bits(static_cast<uint32_t>(b) << 16); }

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
  if ((h & 0x7c00u) == 0x7c00u) return float_of_bits(sign | 0x7f800000u | magnitude);  // infinity or NaN
  // Read as a float32 the exponent is 112 too small; the product is exact, subnormal halves included.
  return float_of_bits(sign | bits_of_float(float_of_bits(magnitude) * 0x1p112f));
}

static inline uint16_t float_to_half(float x) {  // to nearest, ties to even
  uint32_t word = bits_of_float(x);
  const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000u);
  word &= 0x7fffffffu;
  if (word > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (word >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and above
  if (word < 0x38800000u) {  // below the smallest normal half: 0.5 has its last bit at 2^-24, their unit
    const uint32_t shifted = bits_of_float(float_of_bits(word) + 0.5f);
    return static_cast<uint16_t>(sign | (shifted - 0x3f000000u));
  }
  word += 0xc8000fffu + (word >> 13 & 1u);  // the exponent less 112, half a unit, ties to even
  return static_cast<uint16_t>(sign | word >> 13);
}

static inline bool half_is_finite(uint16_t h) { return (h & 0x7c00u) != 0x7c00u; }

}  // namespace unspool
