// A row's largest logits in their order.
#pragma once
// Included after row.h.
#include <algorithm>
#include <functional>

namespace unspool::UNSPOOL_ISA {

static void sort_descending(float* z, int n) { std::sort(z, z + n, std::greater<float>()); }

constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits;

// From how often each digit comes to the place of the first that has it.
static inline void place_digits(int32_t* counts) {
  int32_t first = 0;
  for (int i = 0; i < kDigits; i++) {
    const int32_t count = counts[i];
    counts[i] = first;
    first += count;
  }
}

// A number that is larger for a smaller float; -0 counts as 0.
static inline uint32_t descending_key(float x) {
  const float sum = x + 0.0f;
  uint32_t word;
  std::memcpy(&word, &sum, 4);
  return word >> 31 ? word : ~word & 0x7fffffff;
}

// Sorts by the bits of floats, a stable pass for each digit of how far they are from the largest: at most three,
// whatever the values are.
static void sort_by_bits(float* z, int n, float* spare, int32_t* counts, float top, float lowest) {
  const uint32_t first = descending_key(top), span = descending_key(lowest) - first;
  float *from = z, *to = spare;
  for (int shift = 0; shift < 32 && span >> shift; shift += kDigitBits) {
    const auto digit = [&](float x) { return (descending_key(x) - first) >> shift & (kDigits - 1); };
    std::memset(counts, 0, kDigits * sizeof(int32_t));
    for (int i = 0; i < n; i++) counts[digit(from[i])]++;
    place_digits(counts);
    for (int i = 0; i < n; i++) to[counts[digit(from[i])]++] = from[i];
    std::swap(from, to);
  }
  if (from != z) std::memcpy(z, from, static_cast<size_t>(n) * sizeof(float));
}

// Puts what is near its place there, in at most so many steps and n more; whether those were enough.
static bool insert_all(float* z, int n, int64_t steps) {
  for (int i = 1; i < n; i++) {
    const float x = z[i];
    if (!(z[i - 1] < x)) continue;
    int at = i;
    for (; at > 0 && z[at - 1] < x; at--) z[at] = z[at - 1];
    z[at] = x;
    steps -= i - at;
    if (steps < 0) return false;
  }
  return true;
}

// The same with room for as many in `spare`, and kSortCounts in `counts`. A value's distance from the largest in units
// of 2^-22 of the greatest keeps order: two passes sort by its lower and its upper half, each stable, and what has
// equal distances is next to its place. Where many different values have equal ones, as in clusters, all go by bits.
static void sort_descending(float* z, int n, float* spare, int32_t* counts) {
  static_assert(kSortCounts == 2 * kDigits);
  if (n < 256) return sort_descending(z, n);
  const float top = largest_of(z, n), lowest = lowest_of(z, n), depth = top - lowest;
  if (!(depth > 0x1p-60f) || !(depth < 0x1p60f)) return sort_by_bits(z, n, spare, counts, top, lowest);
  const float scale = static_cast<float>((kDigits * kDigits - 2) / static_cast<double>(depth));
  const auto distance = [&](float x) { return static_cast<uint32_t>(static_cast<int32_t>((top - x) * scale)); };
  int32_t *lower = counts, *upper = counts + kDigits;
  std::memset(counts, 0, kSortCounts * sizeof(int32_t));
  for (int i = 0; i < n; i++) {
    const uint32_t d = distance(z[i]);
    lower[d % kDigits]++;
    upper[d / kDigits]++;
  }
  place_digits(lower);
  place_digits(upper);
  for (int i = 0; i < n; i++) spare[lower[distance(z[i]) % kDigits]++] = z[i];
  for (int i = 0; i < n; i++) z[upper[distance(spare[i]) / kDigits]++] = spare[i];
  if (!insert_all(z, n, n)) sort_by_bits(z, n, spare, counts, top, lowest);
}

}  // namespace unspool::UNSPOOL_ISA
