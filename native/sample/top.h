// The most probable candidates: so many of them, or those that weigh enough, each.
#pragma once
// Included after cut.h.

namespace unspool::UNSPOOL_ISA {

// A level, undivided, that at least k logits of a dense row reach and not many more do: the k-th largest of the
// maxima of eight logits each. For a large k, one that all candidates reach.
static float level_of_top(const Row& row, int64_t k, const SampleScratch& scratch) {
  if (k == 1) return row.max;
  const int n = num_maxima(row.n);
  if (k > n / 2) return kLowest;
  std::memcpy(scratch.band_z, row.maxima, static_cast<size_t>(n) * sizeof(float));
  const float level = cut_at<false>({scratch.band_z, nullptr, n}, n, k).level;
  return level > kLowest ? level : kLowest;
}

// The first k of the descending order, and of those that equal the last one what `ties` says.
static void keep_top_k(Row& row, double value, Ties ties, const SampleScratch& scratch) {
  if (value >= row.n) return;
  const int64_t k = static_cast<int64_t>(value);
  if (!row.ids) list_from(row, below(row, level_of_top(row, k, scratch)), scratch);
  if (k >= row.n) return;
  std::memcpy(scratch.band_z, row.z, static_cast<size_t>(row.n) * sizeof(float));
  const Cut cut = cut_at<false>({scratch.band_z, nullptr, row.n}, row.n, k);
  keep_segment(row, with_ties(cut, ties), ByLogit{}, scratch);
}

static void keep_best(Row& row, const SampleScratch& scratch) { keep_top_k(row, 1, Ties::kLowestId, scratch); }

// The least 2^40 e whose mass, rounded to even, is at least `level`, from 1 to 2^40.
static float least_of_mass(int64_t level) {
  const auto reaches = [&](float x) {
    return (static_cast<double>(x) + 0x1p52) - 0x1p52 >= static_cast<double>(level);
  };
  const auto step = [](float x, int by) {  // to a neighbour, of positive floats
    int32_t word;
    std::memcpy(&word, &x, 4);
    word += by;
    std::memcpy(&x, &word, 4);
    return x;
  };
  float x = static_cast<float>(static_cast<double>(level) - 0.5);
  while (reaches(x)) x = step(x, -1);
  while (!reaches(x)) x = step(x, 1);
  return x;
}

// Keeps the masses of at least `level`, from 1 to 2^40. exp falls as its argument does but for its rounding, so that
// of a dense row only what is near that depth is weighed.
static void keep_heavy(Row& row, int64_t level, const SampleScratch& scratch) {
  const double depth = 0.001 - natural_log((static_cast<double>(level) - 0.5) * 0x1p-40);
  list_from(row, below_quotient(row, row.top() - depth), scratch);
  const f32x16 least = set(least_of_mass(level)), top = set(row.max);
  keep_list(row, scratch, [&](f32x16 v, int) { return exp_below_zero(v - top) * set(0x1p40f) >= least; });
}

// Keeps the masses of at least L - (L >> 21), or the most probable candidate if there is none.
static void keep_from(Row& row, int64_t level, const SampleScratch& scratch) {
  level -= level >> 21;
  if (level > int64_t{1} << 40) return keep_best(row, scratch);
  if (level >= 1) keep_heavy(row, level, scratch);
}

// The place of the last of a list in the descending order: of the lowest logits, that with the highest id.
static int last_of(const Row& list) {
  int last = 0;
  for (int i = 1; i < list.n; i++) {
    if (list.z[i] <= list.z[last]) last = i;
  }
  return last;
}

// Drops the masses of at least L - (L >> 21) but the last of them in the descending order.
static void drop_top(Row& row, int64_t level, const SampleScratch& scratch) {
  level -= level >> 21;
  if (level > int64_t{1} << 40) return;  // not even the largest is
  if (level < 1) {  // all are
    list_from(row, kLowest, scratch);
    const int last = last_of(row);
    scratch.ids[0] = row.ids[last];
    row.max = scratch.logits[0] = row.z[last];
    row.n = 1;
  } else if (!row.ids) {
    Row heavy = row;
    keep_heavy(heavy, level, scratch);
    if (heavy.n < 2) return;
    const int32_t last = heavy.ids[last_of(heavy)];
    own(row, scratch);
    for (int i = 0; i < heavy.n; i++) {
      if (heavy.ids[i] != last) set_logit(row, scratch, heavy.ids[i], -kInfinity);
    }
    row.max = largest_of(scratch.maxima, num_maxima(row.n));
  } else {
    const f32x16 least = set(least_of_mass(level)), top = set(row.max);
    int heavy = 0;
    float lowest = kInfinity;
    for_each_vector(row.z, row.n, [&](f32x16 v, int at) {
      const mask16 chosen = exp_below_zero(v - top) * set(0x1p40f) >= least;
      heavy += count_of(chosen);
      lowest = min_of(min(set(lowest), select(chosen, v, set(kInfinity))));
      store(scratch.band_z + at, select(chosen, set(-kInfinity), v));
    });
    if (heavy < 2) return;
    int last = row.n - 1;  // the last of the lowest among those marked
    while (row.z[last] != lowest || scratch.band_z[last] > -kInfinity) last--;
    scratch.band_z[last] = lowest;
    std::memcpy(scratch.logits, scratch.band_z, static_cast<size_t>(row.n) * sizeof(float));
    keep_list(row, scratch, [&](f32x16 v, int) { return over(v, set(-kInfinity)); });
    row.max = largest_of(row.z, row.n);
  }
  row.weighed = false;
}

}  // namespace unspool::UNSPOOL_ISA
