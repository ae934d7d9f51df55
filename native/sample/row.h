// A row of logits while a chain works on it: every token at first, then a list of candidates.
#pragma once
// Included after one of simd's avx512.h, avx2.h, portable.h.
#include <cstring>
#include <limits>

#include "../sample.h"
#include "../simd/exp.h"

namespace unspool::UNSPOOL_ISA {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Dense (`ids` null, place i is token i) until a truncation makes it a list, of ascending ids. The logits
// that rules see are z / divisor: a dense row's temperature waits for a pass that reads the row anyway.
struct Row {
  const float* z;
  const int32_t* ids;
  int n;
  float max;           // of z
  const float* maxima;  // of a dense row's spans
  float divisor;
  int64_t total;  // of its masses; 0 where that is not known
};

// f(vector, place of its first lane) over n floats; lanes beyond them hold -infinity.
template <class F>
static inline void for_each_vector(const float* z, int n, const F& f) {
  int i = 0;
  for (; i + 16 <= n; i += 16) f(load(z + i), i);
  if (i < n) f(load_first(z + i, n - i, -kInfinity), i);
}

static inline bool any(mask16 m) { return bits(m) != 0; }

// x's lanes from -87 up, where its exponential has a mass that rounds to 0.
static inline f32x16 exp_below_zero(f32x16 x) { return exp_in_range(max(x, set(-87.0f))); }

// round(2^40 e)
static inline i64x16 mass_of(f32x16 e) { return to_long(e * set(0x1p40f)); }
static inline int64_t mass_of(float e) {
  return static_cast<int64_t>((static_cast<double>(e) * 0x1p40 + 0x1p52) - 0x1p52);
}

// The largest of n logits and whether they are sound, and the largest of each span, [ceil(n / kSpan)][16], to `maxima`.
static void survey(const float* z, int n, float* maxima, RowFacts& facts) {
  f32x16 largest = set(-kInfinity);
  f32x16 sound = zero();  // stays 0 unless NaN or infinity times 0 is added; costs less than masks do
  for (int from = 0; from < n; from += kSpan) {
    f32x16 of_span = set(-kInfinity);
    for_each_vector(z + from, n - from < kSpan ? n - from : kSpan, [&](f32x16 v, int) {
      of_span = max(of_span, v);
      sound = sound + max(set(kLowest), v) * zero();  // max gives its second where either is NaN
    });
    store(maxima + from / 8, of_span);
    largest = max(largest, of_span);
  }
  facts.max = max_of(largest);
  facts.sound = bits(sound == zero()) == 0xffff;
}

static inline int num_maxima(int n) { return (n + kSpan - 1) / kSpan * 16; }

// What n logits weigh, whatever the order. Meanwhile as many of the next row, if one is given, are fetched.
static void weigh(const float* z, int n, float max_z, const float* next, RowFacts& facts) {
  i64x16 total = zero_long(), moment = zero_long();
  const auto add = [&](auto& x) {  // logits less the largest
    constexpr int kVectors = sizeof x / sizeof x[0];
    f32x16 w[kVectors];
    for (int i = 0; i < kVectors; i++) w[i] = x[i] = max(x[i], set(-87.0f));
    exp_in_range<40>(w);
    for (int i = 0; i < kVectors; i++) {
      total = total + to_long(w[i]);
      moment = moment + to_long((zero() - x[i]) * w[i]);  // scaled by a power of two, d e^-d rounds the same
    }
  };
  int from = 0;
  for (; from + 16 * kExpVectors <= n; from += 16 * kExpVectors) {
    f32x16 x[kExpVectors];
    for (int i = 0; i < kExpVectors; i++) x[i] = load(z + from + 16 * i) - set(max_z);
    for (int i = 0; next && i < kExpVectors; i++) prefetch(next + from + 16 * i);
    add(x);
  }
  for_each_vector(z + from, n - from, [&](f32x16 v, int) {
    f32x16 x[1] = {v - set(max_z)};
    add(x);
  });
  facts.total = sum_long(total);
  facts.moment = sum_long(moment);
}

static inline i32x16 places_from(int first) {
  alignas(64) static constexpr int32_t kPlaces[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_int(kPlaces) + set_int(first);
}

// Tokens of a dense row with a logit of at least `level`, in order, with their logits; returns how many.
static int collect(const Row& row, float level, int32_t* ids, float* z) {
  int count = 0;
  for (int from = 0; from < row.n; from += kSpan) {
    if (!any(load(row.maxima + from / 8) >= set(level))) continue;
    for_each_vector(row.z + from, row.n - from < kSpan ? row.n - from : kSpan, [&](f32x16 v, int at) {
      const mask16 chosen = v >= set(level);
      if (!any(chosen)) return;
      compress(ids + count, places_from(from + at), chosen);
      count += compress(z + count, v, chosen);
    });
  }
  return count;
}

static inline void divide(const float* z, int n, float divisor, float* out) {
  for (int i = 0; i < n; i += 16) store(out + i, load(z + i) / set(divisor));
}

// Makes a list of what a dense row has at or above `level` (of its undivided logits), or leaves a list.
static void list_from(Row& row, float level, const SampleScratch& scratch) {
  if (row.ids) return;
  row.n = collect(row, level, scratch.ids, scratch.logits);
  row.z = scratch.logits;
  row.ids = scratch.ids;
  row.total = 0;
  if (row.divisor == 1.0f) return;
  divide(row.z, row.n, row.divisor, scratch.logits);  // the arrays have room for a last vector
  row.max /= row.divisor;
  row.divisor = 1.0f;
}

// Carries out the division that waits. Division by a positive number keeps order, so the maxima of the
// quotients are the quotients of the maxima.
static void settle(Row& row, const SampleScratch& scratch) {
  if (row.divisor == 1.0f) return;
  const f32x16 divisor = set(row.divisor);
  for_each_vector(row.z, row.n, [&](f32x16 v, int at) { store(scratch.row + at, v / divisor); });
  divide(row.maxima, num_maxima(row.n), row.divisor, scratch.maxima);
  row.z = scratch.row;
  row.maxima = scratch.maxima;
  row.total = 0;
  row.max /= row.divisor;
  row.divisor = 1.0f;
}

// A level of undivided logits below every one whose quotient is at least that of `level`.
static inline float below(const Row& row, double level) {
  const double size = level < 0 ? -level : level;
  const double lower = level - size * 0x1p-20 - row.divisor * 0x1p-140;
  return lower > kLowest ? static_cast<float>(lower) : kLowest;
}

}  // namespace unspool::UNSPOOL_ISA
