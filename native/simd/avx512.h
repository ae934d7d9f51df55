// Sixteen lanes on AVX-512 with VNNI: one register each.
#pragma once
#include <immintrin.h>
#include <cstdint>

namespace unspool::UNSPOOL_ISA {

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
struct u8x64 { __m512i v; };       // four consecutive inputs of each of 16 output rows
struct mask16 { __mmask16 v; };    // bit i stands for lane i

// Tokens that share one pass over a panel of weights: what the registers hold.
constexpr int kTile = 16;
constexpr int kFloatTile = 6;  // with four float chains a token
// Query rows that share one pass over a block of keys, and over a block of values.
constexpr int kScoreRows = 12;
constexpr int kMixRows = 6;

static inline f32x16 zero() { return {_mm512_setzero_ps()}; }
static inline f32x16 set(float x) { return {_mm512_set1_ps(x)}; }
static inline f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
static inline f32x16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_half(uint16_t* p, f32x16 a) {  // to nearest, ties to even
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline f32x16 load_bfloat(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
static inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where either is NaN, as x86 has it.
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
static inline i32x16 to_int(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // ties to even
static inline f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline f32x16 as_float(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
static inline i32x16 as_int(f32x16 a) { return {_mm512_castps_si512(a.v)}; }

static inline i32x16 set_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline i32x16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void store_int(int32_t* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
static inline i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int N>
static inline i32x16 shift_left(i32x16 a) { return {_mm512_slli_epi32(a.v, N)}; }
// The low byte of each lane; lanes must be in -128..127.
static inline void store_bytes(int8_t* p, i32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

static inline i32x16 load_bytes(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

static inline mask16 first_lanes(int n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }  // n in 0..16
static inline mask16 operator<(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static inline mask16 operator>=(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
static inline mask16 operator&(mask16 a, mask16 b) { return {static_cast<__mmask16>(a.v & b.v)}; }
static inline mask16 operator~(mask16 a) { return {static_cast<__mmask16>(~a.v)}; }
static inline uint32_t bits(mask16 a) { return a.v; }
static inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return {_mm512_mask_mov_ps(no.v, m.v, yes.v)}; }

// Lanes 2i and 2i+1 exchanged.
static inline f32x16 swap_pairs(f32x16 a) { return {_mm512_permute_ps(a.v, 0xB1)}; }

// Lane i meets lane i+8, then i+4, i+2, i+1: one fixed tree.
static inline float sum(f32x16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float max_of(f32x16 a) { return _mm512_reduce_max_ps(a.v); }
static inline int32_t sum_int(i32x16 a) { return _mm512_reduce_add_epi32(a.v); }

static inline u8x64 load_weights(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline u8x64 low_nibbles(u8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
static inline u8x64 high_nibbles(u8x64 a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
// Some bits of `high`, moved left within their bytes (or right, where negative) and chosen by a mask, into `low`.
template <int kLeft, int kMask>
static inline u8x64 insert_bits(u8x64 low, u8x64 high) {
  const __m512i moved = kLeft > 0 ? _mm512_slli_epi16(high.v, kLeft > 0 ? kLeft : 0)
                                  : _mm512_srli_epi16(high.v, kLeft < 0 ? -kLeft : 0);
  return {_mm512_or_si512(low.v, _mm512_and_si512(moved, _mm512_set1_epi8(kMask)))};
}
// acc[r] + sum over j of w[4r + j] * a[j], exact: unsigned weights, four int8 activations. The operand is
// written in assembly so that the compiler folds the broadcast into it.
static inline i32x16 dot(i32x16 acc, u8x64 w, const int8_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(w.v), "m"(*reinterpret_cast<const int32_t*>(a)));
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
static inline void prefetch_near(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// What sampling needs.

// Vectors whose exponentials are computed side by side: what the registers hold.
constexpr int kExpVectors = 8;

struct i64x16 { __m512i lo, hi; };

static inline f32x16 load_first(const float* p, int n, float rest) {  // n in 0..16
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(rest), first_lanes(n).v, p)};
}
static inline mask16 operator==(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
template <int N>
static inline i32x16 shift_right(i32x16 a) { return {_mm512_srli_epi32(a.v, N)}; }  // zeros come in
// The chosen lanes in a row, 64 bytes written; returns how many they are.
static inline int compress(float* p, f32x16 a, mask16 m) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(m.v, a.v));
  return __builtin_popcount(m.v);
}
static inline int compress(int32_t* p, i32x16 a, mask16 m) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m.v, a.v));
  return __builtin_popcount(m.v);
}
// Eight counters of Philox, each in the lower half of a lane; what is in the upper half has no meaning.
struct u64x8 { __m512i v; };
constexpr int kNoiseGroups = 4;  // of eight counters side by side: what the registers hold
static inline u64x8 set_wide(uint32_t x) { return {_mm512_set1_epi64(x)}; }
static inline u64x8 load_wide(const int32_t* p) {  // 8
  return {_mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_low(int32_t* p, u64x8 a) {  // 8
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi64_epi32(a.v));
}
// The 64-bit products of the lower halves and b.
static inline u64x8 multiply(u64x8 a, uint32_t b) { return {_mm512_mul_epu32(a.v, _mm512_set1_epi64(b))}; }
// Upper half of p ^ lower halves of a and b.
static inline u64x8 xor_high(u64x8 p, u64x8 a, u64x8 b) {
  return {_mm512_ternarylogic_epi64(_mm512_srli_epi64(p.v, 32), a.v, b.v, 0x96)};
}
// The lower halves of four vectors, taken lane by lane: of lanes 0, 2, 4, 6 and of lanes 1, 3, 5, 7.
static inline void interleave(const u64x8 (&c)[4], i32x16& even, i32x16& odd) {
  const __m512i p = _mm512_mask_mov_epi32(c[0].v, 0xAAAA, _mm512_slli_epi64(c[1].v, 32));
  const __m512i q = _mm512_mask_mov_epi32(c[2].v, 0xAAAA, _mm512_slli_epi64(c[3].v, 32));
  even = {_mm512_unpacklo_epi64(p, q)};
  odd = {_mm512_unpackhi_epi64(p, q)};
}
// Sixteen lanes in double precision.
struct f64x16 { __m512d lo, hi; };
static inline f64x16 set_double(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
static inline f64x16 to_double(f32x16 a) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))};
}
static inline f64x16 operator+(f64x16 a, f64x16 b) { return {_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)}; }
static inline f64x16 operator-(f64x16 a, f64x16 b) { return {_mm512_sub_pd(a.lo, b.lo), _mm512_sub_pd(a.hi, b.hi)}; }
static inline f64x16 operator*(f64x16 a, f64x16 b) { return {_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)}; }
static inline f64x16 abs(f64x16 a) { return {_mm512_abs_pd(a.lo), _mm512_abs_pd(a.hi)}; }
static inline void store_double(double* p, f64x16 a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}
static inline i64x16 zero_long() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
// To the nearest integer, ties to even; lanes in 0..2^51.
static inline i64x16 to_long(f32x16 a) {
  return {_mm512_cvtps_epi64(_mm512_castps512_ps256(a.v)), _mm512_cvtps_epi64(_mm512_extractf32x8_ps(a.v, 1))};
}
static inline i64x16 operator+(i64x16 a, i64x16 b) {
  return {_mm512_add_epi64(a.lo, b.lo), _mm512_add_epi64(a.hi, b.hi)};
}
// Zero in the lanes that are not chosen.
static inline i64x16 keep(i64x16 a, mask16 m) {
  return {_mm512_maskz_mov_epi64(static_cast<__mmask8>(m.v), a.lo),
          _mm512_maskz_mov_epi64(static_cast<__mmask8>(m.v >> 8), a.hi)};
}
static inline int64_t sum_long(i64x16 a) { return _mm512_reduce_add_epi64(_mm512_add_epi64(a.lo, a.hi)); }

}  // namespace unspool::UNSPOOL_ISA
