// The cache's types, as keys and values are rounded to them and read from them.
#pragma once
#include <cfloat>

#include "../half.h"

namespace unspool::UNSPOOL_ISA {

// To nearest, ties to even; NaN stays NaN.
static inline void store_bfloat(uint16_t* p, f32x16 x) {
  const i32x16 word = as_int(select(x == x, x, set(__builtin_nanf(""))));
  alignas(64) int32_t rounded[16];
  store_int(rounded, word + set_int(0x7fff) + shift_right<31>(shift_left<15>(word)));
  for (int i = 0; i < 16; i++) p[i] = static_cast<uint16_t>(static_cast<uint32_t>(rounded[i]) >> 16);
}

// kMost is the largest number that it holds; kWhole, whether a vector is written whole, as its scale needs all of it.
struct HalfFormat {
  using Element = uint16_t;
  static constexpr float kMost = 65504.0f;
  static constexpr bool kWhole = false;
  static inline f32x16 read(const Element* p) { return load_half(p); }
  static inline void write(Element* p, f32x16 x) { store_half(p, x); }
};
struct BFloatFormat {
  using Element = uint16_t;
  static constexpr float kMost = 0x1.fep127f;
  static constexpr bool kWhole = false;
  static inline f32x16 read(const Element* p) { return load_bfloat(p); }
  static inline void write(Element* p, f32x16 x) { store_bfloat(p, x); }
};
struct FloatFormat {
  using Element = float;
  static constexpr float kMost = FLT_MAX;
  static constexpr bool kWhole = false;
  static inline f32x16 read(const Element* p) { return load(p); }
  static inline void write(Element* p, f32x16 x) { store(p, x); }
};
struct ByteFormat {
  using Element = int8_t;
  static constexpr float kMost = 127 * 65504.0f;
  static constexpr bool kWhole = true;
  static inline f32x16 read(const Element* p) { return to_float(load_bytes(p)); }
};

// Calls task(format) with the type's.
template <class Task>
static inline void with_format(CacheType type, const Task& task) {
  switch (type) {
    case CacheType::Float16:
      return task(HalfFormat());
    case CacheType::BFloat16:
      return task(BFloatFormat());
    case CacheType::Float32:
      return task(FloatFormat());
    case CacheType::Int8:
      return task(ByteFormat());
  }
}

// Numbers saturate: an infinite one would turn later rows into NaN. A key that is NaN stays NaN, so that the rows
// that see it are; a value becomes finite even then, as rows that may not see it multiply it by 0.
template <class Format>
static inline f32x16 bounded_key(f32x16 x) {
  return max(set(-Format::kMost), min(set(Format::kMost), x));
}
template <class Format>
static inline f32x16 bounded_value(f32x16 x) {
  return max(min(x, set(Format::kMost)), set(-Format::kMost));
}

// 16 dimensions from d on of a slot's key or value, bounded.
template <class Format>
static inline void write_key(uint8_t* head, int slot, int d, f32x16 key) {
  alignas(64) typename Format::Element rounded[16];
  Format::write(rounded, key);
  auto* keys = reinterpret_cast<typename Format::Element*>(head) + kBlock * d + slot;
  for (int i = 0; i < 16; i++) keys[kBlock * i] = rounded[i];
}
template <class Format>
static inline void write_value(const HeadLayout& layout, uint8_t* head, int slot, int d, f32x16 value) {
  auto* values = reinterpret_cast<typename Format::Element*>(head + layout.values_at());
  Format::write(values + static_cast<size_t>(layout.head_dim) * slot + d, value);
}

// x[n] as codes times a half, which is returned: the nearest to max |x| / 127. Codes are the nearest to x / scale,
// ties to even, in -127..127. A vector with NaN in it has the scale NaN, and codes 0.
static inline uint16_t encode_bytes(const float* x, int n, int8_t* codes) {
  f32x16 largest = zero(), broken = zero();
  for (int i = 0; i < n; i += 16) {
    largest = max(largest, abs(load(x + i)));
    broken = fma(load(x + i), zero(), broken);
  }
  const bool sound = sum(broken) == 0.0f;
  const uint16_t half = sound ? float_to_half(max_of(largest) / 127.0f) : 0x7e00;
  const f32x16 scale = set(half_to_float(half)), most = set(127.0f), least = set(-127.0f);
  for (int i = 0; i < n; i += 16) {
    const f32x16 code = sound && half ? max(min(load(x + i) / scale, most), least) : zero();
    store_bytes(codes + i, to_int(code));
  }
  return half;
}

// A slot's whole key and value, bounded.
static inline void write_bytes(const HeadLayout& layout, uint8_t* head, int slot, const float* key,
                               const float* value) {
  alignas(64) int8_t codes[kMaxHeadDim];
  const uint16_t scale = encode_bytes(key, layout.head_dim, codes);
  for (int d = 0; d < layout.head_dim; d += 4) {
    uint32_t four;
    __builtin_memcpy(&four, codes + d, 4);
    four ^= 0x80808080u;
    __builtin_memcpy(head + kBlock * d + 4 * slot, &four, 4);
  }
  reinterpret_cast<uint16_t*>(head + layout.key_scales_at())[slot] = scale;
  int8_t* values = reinterpret_cast<int8_t*>(head + layout.values_at()) + layout.head_dim * slot;
  reinterpret_cast<uint16_t*>(head + layout.value_scales_at())[slot] = encode_bytes(value, layout.head_dim, values);
}

}  // namespace unspool::UNSPOOL_ISA
