// Keyed noise: what unspool.sampling.noise defines, bit for bit.
#pragma once
// Included after one of simd's avx512.h, avx2.h, portable.h.
#include <cstdint>
#include <cstring>

namespace unspool::UNSPOOL_ISA {

// What a number is drawn for; a counter word, so that no two purposes share bits.
enum class Purpose : uint32_t { kToken = 0, kTail = 1, kCoin = 2 };

// Where a row's noise comes from: everything that it depends on but the token.
struct NoiseSource {
  uint64_t key;
  uint32_t position, sample_index;
};

constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kPhiloxWeyl[2] = {0x9E3779B9u, 0xBB67AE85u};
// Below this many the 32 bits are continued: a thinner tail than theirs is reached.
constexpr uint32_t kTailBits = 1u << 12;

// 32 random bits of one token: Philox4x32-10 (Salmon et al., 2011).
static inline uint32_t noise_bits(const NoiseSource& source, int32_t token, Purpose purpose) {
  uint32_t c[4] = {static_cast<uint32_t>(token) >> 2, source.position, source.sample_index,
                   static_cast<uint32_t>(purpose)};
  uint32_t k0 = static_cast<uint32_t>(source.key), k1 = static_cast<uint32_t>(source.key >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = static_cast<uint64_t>(kPhiloxMultipliers[0]) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kPhiloxMultipliers[1]) * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    std::memcpy(c, next, sizeof c);
    k0 += kPhiloxWeyl[0];
    k1 += kPhiloxWeyl[1];
  }
  return c[token & 3];
}

// The blocks of N groups of eight counters, whose first words come in c[.][0], side by side: each round waits for
// the one before it. Products are of the lower halves of lanes, so that what is left in the upper ones is no matter.
template <int N>
static inline void noise_blocks(const NoiseSource& source, u64x8 (&c)[N][4]) {
  uint32_t k0 = static_cast<uint32_t>(source.key), k1 = static_cast<uint32_t>(source.key >> 32);
  for (int i = 0; i < N; i++) {
    c[i][1] = set_wide(source.position);
    c[i][2] = set_wide(source.sample_index);
    c[i][3] = set_wide(static_cast<uint32_t>(Purpose::kToken));
  }
  for (int round = 0; round < 10; round++) {
    const u64x8 key0 = set_wide(k0), key1 = set_wide(k1);
    for (int i = 0; i < N; i++) {
      const u64x8 p0 = multiply(c[i][0], kPhiloxMultipliers[0]), p1 = multiply(c[i][2], kPhiloxMultipliers[1]);
      c[i][0] = xor_high(p1, c[i][1], key0);
      c[i][1] = p1;
      c[i][2] = xor_high(p0, c[i][3], key1);
      c[i][3] = p0;
    }
    k0 += kPhiloxWeyl[0];
    k1 += kPhiloxWeyl[1];
  }
}

constexpr int kNoiseTokens = 32 * kNoiseGroups;

// noise_bits of the tokens from `first`, a multiple of four, in order. Counter 4 h + l of a group of eight is in
// lane 2 l + h: interleaved, they come in order.
static inline void noise_run(const NoiseSource& source, int32_t first, i32x16 (&bits)[kNoiseTokens / 16]) {
  alignas(64) static constexpr int32_t kOrder[16] = {0, 4, 1, 5, 2, 6, 3, 7};
  u64x8 c[kNoiseGroups][4];
  for (int i = 0; i < kNoiseGroups; i++) {
    int32_t counters[16];
    store_int(counters, load_int(kOrder) + set_int(first / 4 + 8 * i));
    c[i][0] = load_wide(counters);
  }
  noise_blocks(source, c);
  for (int i = 0; i < kNoiseGroups; i++) interleave(c[i], bits[2 * i], bits[2 * i + 1]);
}

// noise_bits of sixteen tokens.
static inline i32x16 noise_of(const NoiseSource& source, const int32_t* tokens) {
  int32_t counters[16], word[4][16], bits[16];
  store_int(counters, shift_right<2>(load_int(tokens)));
  u64x8 c[2][4] = {{load_wide(counters)}, {load_wide(counters + 8)}};
  noise_blocks(source, c);
  for (int j = 0; j < 4; j++) {
    store_low(word[j], c[0][j]);
    store_low(word[j] + 8, c[1][j]);
  }
  for (int i = 0; i < 16; i++) bits[i] = word[tokens[i] & 3][i];
  return load_int(bits);
}

// Natural logarithm of a positive normal double, relative error below 2^-52: fdlibm's e_log.c (Sun
// Microsystems, 1993) in separate multiplications and additions, so that NumPy gives the same bits.
static inline double natural_log(double x) {
  uint64_t word;
  std::memcpy(&word, &x, 8);
  // x = 2^k (1 + f), with 1 + f in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t kRootHalf = 0x3FE6A09E667F3BCDull;
  const int64_t k = static_cast<int64_t>(word - kRootHalf) >> 52;
  word -= static_cast<uint64_t>(k) << 52;
  double m;
  std::memcpy(&m, &word, 8);
  const double f = m - 1.0;
  const double s = f / (2.0 + f), z = s * s;
  double r = 1.479819860511658591e-01;
  r = r * z + 1.531383769920937332e-01;
  r = r * z + 1.818357216161805012e-01;
  r = r * z + 2.222219843214978396e-01;
  r = r * z + 2.857142874366239149e-01;
  r = r * z + 3.999999999940941908e-01;
  r = r * z + 6.666666666666735130e-01;
  r = r * z;
  const double half_square = 0.5 * f * f;
  const double n = static_cast<double>(k);
  const double high = n * 6.93147180369123816490e-01, low = n * 1.90821492927058770002e-10;
  return high - ((half_square - (s * (half_square + r) + low)) - f);
}

// The exponential variable E = -log(1 - v) of one token's bits, v uniform in (0, 1):
// v = (bits + 1/2) / 2^32, and where bits < 2^12, (2^32 bits + more bits + 1/2) / 2^64.
static inline double exponential(const NoiseSource& source, int32_t token, uint32_t bits) {
  if (bits >= kTailBits) return -natural_log(1.0 - (bits + 0.5) * 0x1p-32);  // 1 - v is exact
  const uint32_t more = noise_bits(source, token, Purpose::kTail);
  const double v = (static_cast<double>(static_cast<uint64_t>(bits) << 32 | more) + 0.5) * 0x1p-64;
  return v + v * v * (0.5 + v * (1.0 / 3.0));  // the series: v < 2^-20
}

}  // namespace unspool::UNSPOOL_ISA
