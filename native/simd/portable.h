// Sixteen lanes in plain C++: loops that any compiler can turn into what its processor has.
#pragma once
#include <cstdint>
#include <cstring>

#include "../half.h"

namespace unspool::UNSPOOL_ISA {

struct f32x16 { float v[16]; };
struct i32x16 { int32_t v[16]; };
struct u8x64 { uint8_t v[64]; };   // four consecutive inputs of each of 16 output rows
struct mask16 { uint32_t v; };     // bit i stands for lane i

// Tokens that share one pass over a panel of weights.
constexpr int kTile = 4;
constexpr int kFloatTile = 1;  // with four float chains a token
// Query rows that share one pass over a block of keys, and over a block of values.
constexpr int kScoreRows = 2;
constexpr int kMixRows = 1;

// One line per lane-wise operation.
#define UNSPOOL_LANES(Type, expression)    \
  Type r;                                  \
  for (int i = 0; i < 16; i++) r.v[i] = (expression); \
  return r

static inline f32x16 zero() { UNSPOOL_LANES(f32x16, 0.0f); }
static inline f32x16 set(float x) { UNSPOOL_LANES(f32x16, x); }
static inline f32x16 load(const float* p) { UNSPOOL_LANES(f32x16, p[i]); }
static inline void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
static inline f32x16 load_half(const uint16_t* p) { UNSPOOL_LANES(f32x16, half_to_float(p[i])); }
static inline void store_half(uint16_t* p, f32x16 a) {
  for (int i = 0; i < 16; i++) p[i] = float_to_half(a.v[i]);
}
static inline f32x16 load_bfloat(const uint16_t* p) {
  f32x16 r;
  for (int i = 0; i < 16; i++) {
    const uint32_t word = static_cast<uint32_t>(p[i]) << 16;
    std::memcpy(&r.v[i], &word, 4);
  }
  return r;
}
static inline f32x16 operator+(f32x16 a, f32x16 b) { UNSPOOL_LANES(f32x16, a.v[i] + b.v[i]); }
static inline f32x16 operator-(f32x16 a, f32x16 b) { UNSPOOL_LANES(f32x16, a.v[i] - b.v[i]); }
static inline f32x16 operator*(f32x16 a, f32x16 b) { UNSPOOL_LANES(f32x16, a.v[i] * b.v[i]); }
static inline f32x16 operator/(f32x16 a, f32x16 b) { UNSPOOL_LANES(f32x16, a.v[i] / b.v[i]); }
// a * b + c, rounded once: one instruction where the processor has it, the C library's otherwise.
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  UNSPOOL_LANES(f32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
// b where either is NaN, as x86 has it.
static inline f32x16 max(f32x16 a, f32x16 b) { UNSPOOL_LANES(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline f32x16 min(f32x16 a, f32x16 b) { UNSPOOL_LANES(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline f32x16 abs(f32x16 a) { UNSPOOL_LANES(f32x16, __builtin_fabsf(a.v[i])); }
// To the nearest integer, ties to even.
static inline i32x16 to_int(f32x16 a) { UNSPOOL_LANES(i32x16, static_cast<int32_t>(__builtin_rintf(a.v[i]))); }
static inline f32x16 to_float(i32x16 a) { UNSPOOL_LANES(f32x16, static_cast<float>(a.v[i])); }
static inline f32x16 as_float(i32x16 a) {
  f32x16 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}
static inline i32x16 as_int(f32x16 a) {
  i32x16 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}

static inline i32x16 set_int(int32_t x) { UNSPOOL_LANES(i32x16, x); }
static inline i32x16 load_int(const int32_t* p) { UNSPOOL_LANES(i32x16, p[i]); }
static inline void store_int(int32_t* p, i32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
// Sums wrap around.
static inline int32_t add_int(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
static inline i32x16 operator+(i32x16 a, i32x16 b) { UNSPOOL_LANES(i32x16, add_int(a.v[i], b.v[i])); }
template <int N>
static inline i32x16 shift_left(i32x16 a) {
  UNSPOOL_LANES(i32x16, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << N));
}
// The low byte of each lane; lanes must be in -128..127.
static inline void store_bytes(int8_t* p, i32x16 a) {
  for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(a.v[i]);
}

static inline i32x16 load_bytes(const int8_t* p) { UNSPOOL_LANES(i32x16, p[i]); }

static inline mask16 first_lanes(int n) { return {(1u << n) - 1u}; }  // n in 0..16
static inline mask16 operator<(f32x16 a, f32x16 b) {
  uint32_t m = 0;
  for (int i = 0; i < 16; i++) m |= static_cast<uint32_t>(a.v[i] < b.v[i]) << i;
  return {m};
}
static inline mask16 operator>=(f32x16 a, f32x16 b) {
  uint32_t m = 0;
  for (int i = 0; i < 16; i++) m |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  return {m};
}
static inline mask16 operator&(mask16 a, mask16 b) { return {a.v & b.v}; }
static inline mask16 operator~(mask16 a) { return {~a.v & 0xffffu}; }
static inline uint32_t bits(mask16 a) { return a.v; }
static inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  UNSPOOL_LANES(f32x16, m.v >> i & 1u ? yes.v[i] : no.v[i]);
}

// Lanes 2i and 2i+1 exchanged.
static inline f32x16 swap_pairs(f32x16 a) { UNSPOOL_LANES(f32x16, a.v[i ^ 1]); }

// Lane i meets lane i+8, then i+4, i+2, i+1: one fixed tree.
static inline float sum(f32x16 a) {
  for (int half = 8; half; half /= 2) {
    for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
static inline float max_of(f32x16 a) {
  for (int half = 8; half; half /= 2) {
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}
static inline int32_t sum_int(i32x16 a) {
  int32_t total = 0;
  for (int i = 0; i < 16; i++) total = add_int(total, a.v[i]);
  return total;
}

static inline u8x64 load_weights(const uint8_t* p) {
  u8x64 r;
  std::memcpy(r.v, p, 64);
  return r;
}
static inline u8x64 low_nibbles(u8x64 a) {
  for (int i = 0; i < 64; i++) a.v[i] &= 15;
  return a;
}
static inline u8x64 high_nibbles(u8x64 a) {
  for (int i = 0; i < 64; i++) a.v[i] >>= 4;
  return a;
}
// Some bits of `high`, moved left within their bytes (or right, where negative) and chosen by a mask, into `low`.
template <int kLeft, int kMask>
static inline u8x64 insert_bits(u8x64 low, u8x64 high) {
  for (int i = 0; i < 64; i++) {
    const int moved = kLeft > 0 ? high.v[i] << (kLeft > 0 ? kLeft : 0) : high.v[i] >> (kLeft < 0 ? -kLeft : 0);
    low.v[i] = static_cast<uint8_t>(low.v[i] | (moved & kMask));
  }
  return low;
}
// acc[r] + sum over j of w[4r + j] * a[j], exact.
static inline i32x16 dot(i32x16 acc, u8x64 w, const int8_t* a) {
  for (int r = 0; r < 16; r++) {
    int32_t s = 0;
    for (int j = 0; j < 4; j++) s += static_cast<int32_t>(w.v[4 * r + j]) * a[j];
    acc.v[r] += s;
  }
  return acc;
}
// The same for signed weights stored as w ^ 0x80, that is w + 128: the accumulator of a group starts at
// start_signed(sum of the group's activations).
static inline i32x16 start_signed(int32_t activation_sum) { return set_int(-128 * activation_sum); }
static inline i32x16 dot_signed(i32x16 acc, u8x64 w, const int8_t* a) { return dot(acc, w, a); }
// Sums of many products: dot by another name, where it has room for all.
using products = i32x16;
constexpr int products_that_fit(int) { return 8; }
static inline products start_products(i32x16 acc) { return acc; }
static inline products add_products(products sums, u8x64 w, const int8_t* a) { return dot(sums, w, a); }
static inline i32x16 take_products(i32x16, products sums) { return sums; }

// Into the first-level cache, and into the second.
static inline void prefetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
static inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// What sampling needs.

// Vectors whose exponentials are computed side by side: what the registers hold.
constexpr int kExpVectors = 1;

struct i64x16 { int64_t v[16]; };

static inline f32x16 load_first(const float* p, int n, float rest) { UNSPOOL_LANES(f32x16, i < n ? p[i] : rest); }
static inline mask16 operator==(f32x16 a, f32x16 b) {
  uint32_t m = 0;
  for (int i = 0; i < 16; i++) m |= static_cast<uint32_t>(a.v[i] == b.v[i]) << i;
  return {m};
}
template <int N>
static inline i32x16 shift_right(i32x16 a) {  // zeros come in
  UNSPOOL_LANES(i32x16, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> N));
}
// The chosen lanes in a row, up to 64 bytes written; returns how many they are.
static inline int compress(float* p, f32x16 a, mask16 m) {
  int n = 0;
  for (uint32_t left = m.v; left; left &= left - 1) p[n++] = a.v[__builtin_ctz(left)];
  return n;
}
static inline int compress(int32_t* p, i32x16 a, mask16 m) {
  int n = 0;
  for (uint32_t left = m.v; left; left &= left - 1) p[n++] = a.v[__builtin_ctz(left)];
  return n;
}
// Eight counters of Philox, each in the lower half of a lane; what is in the upper half has no meaning.
struct u64x8 { uint64_t v[8]; };
constexpr int kNoiseGroups = 1;  // of eight counters side by side
static inline u64x8 set_wide(uint32_t x) { return {{x, x, x, x, x, x, x, x}}; }
static inline u64x8 load_wide(const int32_t* p) {  // 8
  u64x8 r;
  for (int i = 0; i < 8; i++) r.v[i] = static_cast<uint32_t>(p[i]);
  return r;
}
static inline void store_low(int32_t* p, u64x8 a) {  // 8
  for (int i = 0; i < 8; i++) p[i] = static_cast<int32_t>(a.v[i]);
}
// The 64-bit products of the lower halves and b.
static inline u64x8 multiply(u64x8 a, uint32_t b) {
  for (int i = 0; i < 8; i++) a.v[i] = (a.v[i] & 0xffffffffu) * b;
  return a;
}
// Upper half of p ^ lower halves of a and b.
static inline u64x8 xor_high(u64x8 p, u64x8 a, u64x8 b) {
  for (int i = 0; i < 8; i++) p.v[i] = p.v[i] >> 32 ^ a.v[i] ^ b.v[i];
  return p;
}
// The lower halves of four vectors, taken lane by lane: of lanes 0, 2, 4, 6 and of lanes 1, 3, 5, 7.
static inline void interleave(const u64x8 (&c)[4], i32x16& even, i32x16& odd) {
  for (int i = 0; i < 16; i++) {
    even.v[i] = static_cast<int32_t>(c[i % 4].v[i / 4 * 2]);
    odd.v[i] = static_cast<int32_t>(c[i % 4].v[i / 4 * 2 + 1]);
  }
}
// Sixteen lanes in double precision.
struct f64x16 { double v[16]; };
static inline f64x16 set_double(double x) { UNSPOOL_LANES(f64x16, x); }
static inline f64x16 to_double(f32x16 a) { UNSPOOL_LANES(f64x16, static_cast<double>(a.v[i])); }
static inline f64x16 operator+(f64x16 a, f64x16 b) { UNSPOOL_LANES(f64x16, a.v[i] + b.v[i]); }
static inline f64x16 operator-(f64x16 a, f64x16 b) { UNSPOOL_LANES(f64x16, a.v[i] - b.v[i]); }
static inline f64x16 operator*(f64x16 a, f64x16 b) { UNSPOOL_LANES(f64x16, a.v[i] * b.v[i]); }
static inline f64x16 abs(f64x16 a) { UNSPOOL_LANES(f64x16, __builtin_fabs(a.v[i])); }
static inline void store_double(double* p, f64x16 a) { std::memcpy(p, a.v, sizeof a.v); }
static inline i64x16 zero_long() { return {}; }
// To the nearest integer, ties to even; lanes in 0..2^51.
static inline i64x16 to_long(f32x16 a) {
  UNSPOOL_LANES(i64x16, static_cast<int64_t>((static_cast<double>(a.v[i]) + 0x1p52) - 0x1p52));
}
static inline i64x16 operator+(i64x16 a, i64x16 b) { UNSPOOL_LANES(i64x16, a.v[i] + b.v[i]); }
// Zero in the lanes that are not chosen.
static inline i64x16 keep(i64x16 a, mask16 m) { UNSPOOL_LANES(i64x16, m.v >> i & 1u ? a.v[i] : 0); }
static inline int64_t sum_long(i64x16 a) {
  int64_t total = 0;
  for (int i = 0; i < 16; i++) total += a.v[i];
  return total;
}

#undef UNSPOOL_LANES

}  // namespace unspool::UNSPOOL_ISA
