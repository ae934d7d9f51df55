// A row's largest logits in their order.
#pragma once
// Included after row.h.
#include <algorithm>
#include <functional>

namespace unspool::UNSPOOL_ISA {

static void sort_descending(float* z, int n) { std::sort(z, z + n, std::greater<float>()); }

// The same with room for as many in `spare`, and kSortCounts in `counts`. A value's distance from the largest in units
// of 2^-22 of the greatest keeps order: two passes sort by its lower and its upper half, each stable, and what has
// equal distances is next to its place.
static void sort_descending(float* z, int n, float* spare, int32_t* counts) {
  constexpr int kHalf = 11, kDigits = 1 << kHalf;
  static_assert(kSortCounts == 2 * kDigits);
  const float top = largest_of(z, n), depth = top - lowest_of(z, n);
  if (n < 256 || !(depth > 0x1p-60f) || !(depth < 0x1p60f)) return sort_descending(z, n);
  const float scale = static_cast<float>((kDigits * kDigits - 2) / static_cast<double>(depth));
  const auto distance = [&](float x) { return static_cast<uint32_t>(static_cast<int32_t>((top - x) * scale)); };
  int32_t *lower = counts, *upper = counts + kDigits;
  std::memset(counts, 0, kSortCounts * sizeof(int32_t));
  for (int i = 0; i < n; i++) {
    const uint32_t d = distance(z[i]);
    lower[d % kDigits]++;
    upper[d / kDigits]++;
  }
  int32_t first_lower = 0, first_upper = 0;
  for (int i = 0; i < kDigits; i++) {
    const int32_t in_lower = lower[i], in_upper = upper[i];
    lower[i] = first_lower;
    upper[i] = first_upper;
    first_lower += in_lower;
    first_upper += in_upper;
  }
  for (int i = 0; i < n; i++) spare[lower[distance(z[i]) % kDigits]++] = z[i];
  for (int i = 0; i < n; i++) z[upper[distance(spare[i]) / kDigits]++] = spare[i];
  for (int i = 1; i < n; i++) {
    const float x = z[i];
    int at = i;
    for (; at > 0 && z[at - 1] < x; at--) z[at] = z[at - 1];
    z[at] = x;
  }
}

}  // namespace unspool::UNSPOOL_ISA
