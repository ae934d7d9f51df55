// Sixteen lanes on AVX2 with FMA: two registers each. With AVX-VNNI the int8 products are one instruction.
#pragma once
#include <immintrin.h>
#include <cstdint>

namespace unspool::UNSPOOL_ISA {

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };
struct u8x64 { __m256i lo, hi; };   // four consecutive inputs of each of 16 output rows
struct mask16 { __m256 lo, hi; };   // all ones or all zeros in each lane

// Tokens that share one pass over a panel of weights: what the registers hold.
constexpr int kTile = 4;
constexpr int kFloatTile = 1;  // with four float chains a token
// Query rows that share one pass over a block of keys, and over a block of values.
constexpr int kScoreRows = 3;
constexpr int kMixRows = 1;

static inline f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline f32x16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static inline f32x16 load_half(const uint16_t* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
static inline void store_half(uint16_t* p, f32x16 a) {  // to nearest, ties to even
  __m128i* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
static inline f32x16 load_bfloat(const uint16_t* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  const __m256i lo = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16);
  const __m256i hi = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16);
  return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}
static inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
static inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// b where either is NaN, as x86 has it.
static inline f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
static inline i32x16 to_int(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }  // ties to even
static inline f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline f32x16 as_float(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
static inline i32x16 as_int(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

static inline i32x16 set_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline i32x16 load_int(const int32_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
static inline void store_int(int32_t* p, i32x16 a) {
  __m256i* q = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.lo);
  _mm256_storeu_si256(q + 1, a.hi);
}
static inline i32x16 operator+(i32x16 a, i32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
template <int N>
static inline i32x16 shift_left(i32x16 a) { return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)}; }
// The low byte of each lane; lanes must be in -128..127.
static inline void store_bytes(int8_t* p, i32x16 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

static inline i32x16 load_bytes(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}

static inline mask16 first_lanes(int n) {  // n in 0..16
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), index)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), index))};
}
static inline mask16 operator<(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
static inline mask16 operator>=(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
static inline mask16 operator&(mask16 a, mask16 b) { return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)}; }
static inline mask16 operator~(mask16 a) {
  const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  return {_mm256_xor_ps(a.lo, ones), _mm256_xor_ps(a.hi, ones)};
}
static inline uint32_t bits(mask16 a) {
  return static_cast<uint32_t>(_mm256_movemask_ps(a.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(a.hi)) << 8;
}
static inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

// Lanes 2i and 2i+1 exchanged.
static inline f32x16 swap_pairs(f32x16 a) { return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)}; }

// Lane i meets lane i+8, then i+4, i+2, i+1: one fixed tree.
static inline float sum(f32x16 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float max_of(f32x16 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
static inline int32_t sum_int(i32x16 a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtsi128_si32(four);
}

static inline u8x64 load_weights(const uint8_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
static inline u8x64 low_nibbles(u8x64 a) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)};
}
static inline u8x64 high_nibbles(u8x64 a) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), low), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), low)};
}

// Some bits of `high`, moved left within their bytes (or right, where negative) and chosen by a mask, into `low`.
template <int kLeft, int kMask>
static inline u8x64 insert_bits(u8x64 low, u8x64 high) {
  const auto insert = [](__m256i into, __m256i from) {
    const __m256i moved = kLeft > 0 ? _mm256_slli_epi16(from, kLeft > 0 ? kLeft : 0)
                                    : _mm256_srli_epi16(from, kLeft < 0 ? -kLeft : 0);
    return _mm256_or_si256(into, _mm256_and_si256(moved, _mm256_set1_epi8(kMask)));
  };
  return {insert(low.lo, high.lo), insert(low.hi, high.hi)};
}

static inline __m256i broadcast_bytes(const int8_t* a) {
  return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(a));
}

#if UNSPOOL_AVX_VNNI
// acc[r] + sum over j of w[4r + j] * a[j], exact: unsigned weights, int8 activations.
static inline i32x16 dot(i32x16 acc, u8x64 w, const int8_t* a) {
  const __m256i b = broadcast_bytes(a);
  return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, b), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, b)};
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
#else
// The 16-bit sums of pairs below never saturate: 2 * 15 * 127, and 2 * 128 * 127 = 32512, fit in 16 bits.
static inline __m256i add_pairs(__m256i acc, __m256i unsigned_bytes, __m256i signed_bytes) {
  const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// acc[r] + sum over j of w[4r + j] * a[j], exact: unsigned weights below 128, int8 activations in -127..127.
static inline i32x16 dot(i32x16 acc, u8x64 w, const int8_t* a) {
  const __m256i b = broadcast_bytes(a);
  return {add_pairs(acc.lo, w.lo, b), add_pairs(acc.hi, w.hi, b)};
}
// Sums of many products of such weights of few bits, kept in 16 bits as long as these hold them.
struct products { __m256i lo, hi; };
constexpr int products_that_fit(int bits) { return 1 << (7 - bits); }  // each at most 2 * (2^bits - 1) * 127
static inline products start_products(i32x16) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline products add_products(products sums, u8x64 w, const int8_t* a) {
  const __m256i b = broadcast_bytes(a);
  return {_mm256_add_epi16(sums.lo, _mm256_maddubs_epi16(w.lo, b)),
          _mm256_add_epi16(sums.hi, _mm256_maddubs_epi16(w.hi, b))};
}
static inline i32x16 take_products(i32x16 acc, products sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(sums.lo, ones)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(sums.hi, ones))};
}
// Signed weights stored as w ^ 0x80. Unsigned 0..255 would saturate pairs, so here |w| is multiplied by
// the activation that carries w's sign; nothing is left to subtract.
static inline i32x16 start_signed(int32_t) { return set_int(0); }
static inline i32x16 dot_signed(i32x16 acc, u8x64 w, const int8_t* a) {
  const __m256i b = broadcast_bytes(a), flip = _mm256_set1_epi8(-128);
  const __m256i lo = _mm256_xor_si256(w.lo, flip), hi = _mm256_xor_si256(w.hi, flip);
  return {add_pairs(acc.lo, _mm256_abs_epi8(lo), _mm256_sign_epi8(b, lo)),
          add_pairs(acc.hi, _mm256_abs_epi8(hi), _mm256_sign_epi8(b, hi))};
}
#endif

// Into the first-level cache, and into the second.
static inline void prefetch_near(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// What sampling needs.

// Vectors whose exponentials are computed side by side: what the registers hold.
constexpr int kExpVectors = 1;

struct i64x16 { __m256i v[4]; };

static inline f32x16 load_first(const float* p, int n, float rest) {  // n in 0..16
  float lane[16];
  for (int i = 0; i < 16; i++) lane[i] = i < n ? p[i] : rest;
  return load(lane);
}
static inline mask16 operator==(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
template <int N>
static inline i32x16 shift_right(i32x16 a) {  // zeros come in
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
// For each choice of eight lanes, their numbers in a row, a byte each.
struct ChosenLanes {
  uint64_t numbers[256] = {};
  constexpr ChosenLanes() {
    for (unsigned choice = 0; choice < 256; choice++) {
      for (unsigned lane = 0, at = 0; lane < 8; lane++) {
        if (choice >> lane & 1u) numbers[choice] |= static_cast<uint64_t>(lane) << 8 * at++;
      }
    }
  }
};
static constexpr ChosenLanes kChosenLanes;
static inline __m256i compress_half(__m256i a, uint32_t choice) {
  const __m128i numbers = _mm_cvtsi64_si128(static_cast<int64_t>(kChosenLanes.numbers[choice]));
  return _mm256_permutevar8x32_epi32(a, _mm256_cvtepu8_epi32(numbers));
}
// The chosen lanes in a row, up to 64 bytes written; returns how many they are.
static inline int compress(int32_t* p, i32x16 a, mask16 m) {
  const uint32_t chosen = bits(m);
  const int low = __builtin_popcount(chosen & 255u);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), compress_half(a.lo, chosen & 255u));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + low), compress_half(a.hi, chosen >> 8));
  return low + __builtin_popcount(chosen >> 8);
}
static inline int compress(float* p, f32x16 a, mask16 m) {
  return compress(reinterpret_cast<int32_t*>(p), as_int(a), m);
}
// Eight counters of Philox, each in the lower half of a lane; what is in the upper half has no meaning.
struct u64x8 { __m256i lo, hi; };
constexpr int kNoiseGroups = 1;  // of eight counters side by side: what the registers hold
static inline u64x8 set_wide(uint32_t x) { return {_mm256_set1_epi64x(x), _mm256_set1_epi64x(x)}; }
static inline u64x8 load_wide(const int32_t* p) {  // 8
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu32_epi64(_mm_loadu_si128(q)), _mm256_cvtepu32_epi64(_mm_loadu_si128(q + 1))};
}
static inline void store_low(int32_t* p, u64x8 a) {  // 8
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m256i lo = _mm256_permutevar8x32_epi32(a.lo, even), hi = _mm256_permutevar8x32_epi32(a.hi, even);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi32(lo, hi, 0xF0));
}
// The 64-bit products of the lower halves and b.
static inline u64x8 multiply(u64x8 a, uint32_t b) {
  const __m256i factor = _mm256_set1_epi64x(b);
  return {_mm256_mul_epu32(a.lo, factor), _mm256_mul_epu32(a.hi, factor)};
}
// Upper half of p ^ lower halves of a and b.
static inline u64x8 xor_high(u64x8 p, u64x8 a, u64x8 b) {
  return {_mm256_xor_si256(_mm256_srli_epi64(p.lo, 32), _mm256_xor_si256(a.lo, b.lo)),
          _mm256_xor_si256(_mm256_srli_epi64(p.hi, 32), _mm256_xor_si256(a.hi, b.hi))};
}
static inline __m256i pair_halves(__m256i a, __m256i b) {
  return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xAA);
}
// The lower halves of four vectors, taken lane by lane: of lanes 0, 2, 4, 6 and of lanes 1, 3, 5, 7.
static inline void interleave(const u64x8 (&c)[4], i32x16& even, i32x16& odd) {
  const __m256i p = pair_halves(c[0].lo, c[1].lo), q = pair_halves(c[2].lo, c[3].lo);
  const __m256i r = pair_halves(c[0].hi, c[1].hi), s = pair_halves(c[2].hi, c[3].hi);
  even = {_mm256_unpacklo_epi64(p, q), _mm256_unpacklo_epi64(r, s)};
  odd = {_mm256_unpackhi_epi64(p, q), _mm256_unpackhi_epi64(r, s)};
}
// Sixteen lanes in double precision.
struct f64x16 { __m256d v[4]; };
static inline f64x16 set_double(double x) {
  const __m256d v = _mm256_set1_pd(x);
  return {{v, v, v, v}};
}
static inline f64x16 to_double(f32x16 a) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
static inline f64x16 operator+(f64x16 a, f64x16 b) {
  return {{_mm256_add_pd(a.v[0], b.v[0]), _mm256_add_pd(a.v[1], b.v[1]), _mm256_add_pd(a.v[2], b.v[2]),
           _mm256_add_pd(a.v[3], b.v[3])}};
}
static inline f64x16 operator-(f64x16 a, f64x16 b) {
  return {{_mm256_sub_pd(a.v[0], b.v[0]), _mm256_sub_pd(a.v[1], b.v[1]), _mm256_sub_pd(a.v[2], b.v[2]),
           _mm256_sub_pd(a.v[3], b.v[3])}};
}
static inline f64x16 operator*(f64x16 a, f64x16 b) {
  return {{_mm256_mul_pd(a.v[0], b.v[0]), _mm256_mul_pd(a.v[1], b.v[1]), _mm256_mul_pd(a.v[2], b.v[2]),
           _mm256_mul_pd(a.v[3], b.v[3])}};
}
static inline f64x16 abs(f64x16 a) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {{_mm256_andnot_pd(sign, a.v[0]), _mm256_andnot_pd(sign, a.v[1]), _mm256_andnot_pd(sign, a.v[2]),
           _mm256_andnot_pd(sign, a.v[3])}};
}
static inline void store_double(double* p, f64x16 a) {
  for (int i = 0; i < 4; i++) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}
static inline i64x16 zero_long() {
  const __m256i z = _mm256_setzero_si256();
  return {{z, z, z, z}};
}
// To the nearest integer, ties to even; lanes in 0..2^51: a double's bits at 2^52 count in ones.
static inline __m256i to_long_quarter(__m128 a) {
  const __m256d shifted = _mm256_add_pd(_mm256_cvtps_pd(a), _mm256_set1_pd(0x1p52));
  return _mm256_sub_epi64(_mm256_castpd_si256(shifted), _mm256_castpd_si256(_mm256_set1_pd(0x1p52)));
}
static inline i64x16 to_long(f32x16 a) {
  return {{to_long_quarter(_mm256_castps256_ps128(a.lo)), to_long_quarter(_mm256_extractf128_ps(a.lo, 1)),
           to_long_quarter(_mm256_castps256_ps128(a.hi)), to_long_quarter(_mm256_extractf128_ps(a.hi, 1))}};
}
static inline i64x16 operator+(i64x16 a, i64x16 b) {
  return {{_mm256_add_epi64(a.v[0], b.v[0]), _mm256_add_epi64(a.v[1], b.v[1]), _mm256_add_epi64(a.v[2], b.v[2]),
           _mm256_add_epi64(a.v[3], b.v[3])}};
}
// Zero in the lanes that are not chosen.
static inline i64x16 keep(i64x16 a, mask16 m) {
  const __m256i lo = _mm256_castps_si256(m.lo), hi = _mm256_castps_si256(m.hi);
  const auto wide = [](__m128i half) { return _mm256_cvtepi32_epi64(half); };
  return {{_mm256_and_si256(a.v[0], wide(_mm256_castsi256_si128(lo))),
           _mm256_and_si256(a.v[1], wide(_mm256_extracti128_si256(lo, 1))),
           _mm256_and_si256(a.v[2], wide(_mm256_castsi256_si128(hi))),
           _mm256_and_si256(a.v[3], wide(_mm256_extracti128_si256(hi, 1)))}};
}
static inline int64_t sum_long(i64x16 a) {
  const __m256i four = _mm256_add_epi64(_mm256_add_epi64(a.v[0], a.v[1]), _mm256_add_epi64(a.v[2], a.v[3]));
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return _mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1);
}

}  // namespace unspool::UNSPOOL_ISA
