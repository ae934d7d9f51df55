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

// Dense (`ids` null, place i is token i, -infinity a token that is no candidate) until a truncation makes it a
// list, of ascending ids. The logits that rules see are z / divisor: a dense row's temperature waits for a pass
// that reads the row anyway.
struct Row {
  const float* z;
  const int32_t* ids;
  int n;
  float max;            // of z
  const float* maxima;  // of a dense row's spans
  float divisor;
  bool weighed;    // whether the next two are known
  int64_t total;   // of masses
  int64_t moment;  // sum of round(2^40 d exp(-d)), with d = max - z of the divided logits
  float* out;      // where a dense row is changed

  float top() const { return max / divisor; }  // division by a positive number keeps order
};

// Fewer candidates than one in so many tokens are better a list, more of them a dense row: a list's noise costs four
// times as much.
constexpr int kFewOf = 6;

// f(vector, place of its first lane) over n floats; lanes beyond them hold -infinity.
template <class F>
static inline void for_each_vector(const float* z, int n, const F& f) {
  int i = 0;
  for (; i + 16 <= n; i += 16) f(load(z + i), i);
  if (i < n) f(load_first(z + i, n - i, -kInfinity), i);
}

// The same over the logits that rules see, of the places from `from` to `end`, multiples of 16 or the row's end.
template <class F>
static inline void for_each_logit(const Row& row, int from, int end, const F& f) {
  if (row.divisor == 1.0f) {
    for_each_vector(row.z + from, end - from, [&](f32x16 v, int at) { f(v, from + at); });
  } else {
    for_each_vector(row.z + from, end - from, [&](f32x16 v, int at) { f(v / set(row.divisor), from + at); });
  }
}

template <class F>
static inline void for_each_logit(const Row& row, const F& f) {
  for_each_logit(row, 0, row.n, f);
}

static inline bool any(mask16 m) { return bits(m) != 0; }
static inline int count_of(mask16 m) { return __builtin_popcount(bits(m)); }
static inline mask16 over(f32x16 a, f32x16 b) { return b < a; }
static inline float min_of(f32x16 a) { return -max_of(zero() - a); }

// x's lanes from -87 up, where its exponential has a mass that rounds to 0.
static inline f32x16 exp_below_zero(f32x16 x) { return exp_in_range(max(x, set(-87.0f))); }

// round(2^40 e)
static inline i64x16 mass_of(f32x16 e) { return to_long(e * set(0x1p40f)); }
static inline int64_t mass_of(float e) {
  return static_cast<int64_t>((static_cast<double>(e) * 0x1p40 + 0x1p52) - 0x1p52);
}
// round(2^40 d e), for d = -x; scaled by a power of two it rounds the same
static inline i64x16 moment_of(f32x16 x, f32x16 e) {
  return to_long((zero() - max(x, set(-87.0f))) * (e * set(0x1p40f)));
}

// f(logit, its exponential relative to the largest, place) for each vector of the logits that rules see.
template <class F>
static inline void for_each_exp(const Row& row, const F& f) {
  const f32x16 top = set(row.top()), divisor = set(row.divisor);
  const auto pass = [&](const auto& divided) {
    int from = 0;
    for (; from + 16 * kExpVectors <= row.n; from += 16 * kExpVectors) {
      f32x16 q[kExpVectors], e[kExpVectors];
      for (int i = 0; i < kExpVectors; i++) q[i] = divided(load(row.z + from + 16 * i));
      for (int i = 0; i < kExpVectors; i++) e[i] = max(q[i] - top, set(-87.0f));
      exp_in_range(e);
      for (int i = 0; i < kExpVectors; i++) f(q[i], e[i], from + 16 * i);
    }
    for_each_vector(row.z + from, row.n - from, [&](f32x16 v, int at) {
      const f32x16 q = divided(v);
      f(q, exp_below_zero(q - top), from + at);
    });
  };
  if (row.divisor == 1.0f) {
    pass([](f32x16 v) { return v; });
  } else {
    pass([&](f32x16 v) { return v / divisor; });
  }
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

// Sees to it that a row's total and moment are known.
static void weigh(Row& row) {
  if (row.weighed) return;
  i64x16 total = zero_long(), moment = zero_long();
  const f32x16 top = set(row.top());
  for_each_exp(row, [&](f32x16 q, f32x16 e, int) {
    total = total + mass_of(e);
    moment = moment + moment_of(q - top, e);
  });
  row.total = sum_long(total);
  row.moment = sum_long(moment);
  row.weighed = true;
}

// How many candidates there are.
static int count_candidates(const Row& row) {
  if (row.ids) return row.n;
  int count = 0;
  for_each_logit(row, [&](f32x16 q, int) { count += count_of(over(q, set(-kInfinity))); });
  return count;
}

static inline i32x16 places_from(int first) {
  alignas(64) static constexpr int32_t kPlaces[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_int(kPlaces) + set_int(first);
}

// f(vector, place of its first lane) for the spans of a dense row that have a logit, undivided, of at least `level`.
template <class F>
static inline void for_each_from(const Row& row, float level, const F& f) {
  for (int from = 0; from < row.n; from += kSpan) {
    if (!any(load(row.maxima + from / 8) >= set(level))) continue;
    for_each_vector(row.z + from, row.n - from < kSpan ? row.n - from : kSpan,
                    [&](f32x16 v, int at) { f(v, from + at); });
  }
}

// Keeps of a list what the mask that `choose(logits, place)` gives has; f32x16 and int to mask16.
template <class F>
static void keep_list(Row& row, const SampleScratch& scratch, const F& choose) {
  int kept = 0;
  for_each_vector(row.z, row.n, [&](f32x16 v, int at) {
    const mask16 chosen = choose(v, at);
    compress(scratch.ids + kept, load_int(row.ids + at), chosen);
    kept += compress(scratch.logits + kept, v, chosen);
  });
  row.n = kept;
  row.weighed = false;
}

static inline float largest_of(const float* z, int n) {
  f32x16 largest = set(-kInfinity);
  for_each_vector(z, n, [&](f32x16 v, int) { largest = max(largest, v); });
  return max_of(largest);
}

static inline void divide(const float* z, int n, float divisor, float* out) {
  for (int i = 0; i < n; i += 16) store(out + i, load(z + i) / set(divisor));
}

// Divides a list's logits. Below 1 a divisor may take some to -infinity, which are then no candidates; not so the
// largest, as that ends the row.
static void divide_list(Row& row, float divisor, const SampleScratch& scratch) {
  divide(row.z, row.n, divisor, scratch.logits);  // the arrays have room for a last vector
  row.max /= divisor;
  row.weighed = false;
  if (divisor < 1.0f && row.max > -kInfinity) {
    keep_list(row, scratch, [&](f32x16 v, int) { return over(v, set(-kInfinity)); });
  }
}

// Makes a list of what a dense row has at or above `level` (of its undivided logits), or leaves a list.
static void list_from(Row& row, float level, const SampleScratch& scratch) {
  if (row.ids) return;
  int count = 0;
  for_each_from(row, level, [&](f32x16 v, int at) {
    const mask16 chosen = v >= set(level);  // how many they are no processor foresees: no branch
    compress(scratch.ids + count, places_from(at), chosen);
    count += compress(scratch.logits + count, v, chosen);
  });
  row.n = count;
  row.z = scratch.logits;
  row.ids = scratch.ids;
  row.weighed = false;
  const float divisor = row.divisor;
  row.divisor = 1.0f;
  if (divisor != 1.0f) divide_list(row, divisor, scratch);
}

// Makes a dense row that a rule may change of what `f` makes of each vector of logits that rules see.
template <class F>
static void change_all(Row& row, const SampleScratch& scratch, const F& f) {
  f32x16 largest = set(-kInfinity);
  for (int from = 0; from < row.n; from += kSpan) {
    f32x16 of_span = set(-kInfinity);
    for_each_logit(row, from, row.n - from < kSpan ? row.n : from + kSpan, [&](f32x16 q, int at) {
      const f32x16 changed = f(q, at);
      of_span = max(of_span, changed);
      store(row.out + at, changed);
    });
    store(scratch.maxima + from / 8, of_span);
    largest = max(largest, of_span);
  }
  row.z = row.out;
  row.maxima = scratch.maxima;
  row.max = max_of(largest);
  row.divisor = 1.0f;
  row.weighed = false;
}

// Carries out the division that waits.
static void settle(Row& row, const SampleScratch& scratch) {
  if (row.divisor == 1.0f) return;
  for_each_logit(row, [&](f32x16 q, int at) { store(row.out + at, q); });
  divide(row.maxima, num_maxima(row.n), row.divisor, scratch.maxima);
  row.z = row.out;
  row.maxima = scratch.maxima;
  row.max /= row.divisor;
  row.divisor = 1.0f;
}

// A level of undivided logits below every one whose quotient is at least that of `level`.
static inline float below(const Row& row, double level) {
  const double size = level < 0 ? -level : level;
  const double lower = level - size * 0x1p-20 - row.divisor * 0x1p-140;
  return lower > kLowest ? static_cast<float>(lower) : kLowest;
}

// A level of undivided logits below every one whose quotient is at least `level`.
static inline float below_quotient(const Row& row, double level) { return below(row, level * row.divisor); }

// The place of a token among ascending ids, or that of the first one after it.
static inline int place_of(const int32_t* ids, int n, int32_t token) {
  const int32_t* first = ids;
  while (n > 1) {
    const int half = n / 2;
    first += first[half - 1] < token ? half : 0;
    n -= half;
  }
  return static_cast<int>(first - ids) + (n == 1 && *first < token);
}

// A token's logit as rules see it; -infinity where it is no candidate.
static inline float logit_of(const Row& row, int32_t token) {
  if (!row.ids) return row.z[token] / row.divisor;
  const int place = place_of(row.ids, row.n, token);
  return place < row.n && row.ids[place] == token ? row.z[place] : -kInfinity;
}

}  // namespace unspool::UNSPOOL_ISA
