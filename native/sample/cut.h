// Where a truncation that keeps the largest logits cuts them, without sorting.
#pragma once
// Included after row.h.

namespace unspool::UNSPOOL_ISA {

// A top segment of a row: what is above `level`, and the first `ties` of those that equal it. Every
// truncation that takes candidates by descending logit and ascending id keeps a segment of this form.
struct Cut {
  float level;
  int64_t ties;
};

constexpr int64_t kAllTies = std::numeric_limits<int64_t>::max();

// What is under selection: logits, and for masses their exponentials.
struct Band {
  float* z;
  float* e;
  int n;
};

struct Part {
  int64_t measure;  // of what is at or above the pivot
  float lowest;     // of that
  float highest;    // of the rest
};

template <bool kByMass>
static Part measure_from(const Band& band, float pivot) {
  const f32x16 level = set(pivot);
  i64x16 mass = zero_long();
  int64_t count = 0;
  f32x16 lowest = set(kInfinity), highest = set(-kInfinity);
  for_each_vector(band.z, band.n, [&](f32x16 v, int at) {
    const mask16 upper = v >= level;
    lowest = min(lowest, select(upper, v, set(kInfinity)));
    highest = max(highest, select(upper, set(-kInfinity), v));
    if constexpr (kByMass) {
      mass = mass + mass_of(select(upper, load(band.e + at), zero()));
    } else {
      count += __builtin_popcount(bits(upper));
    }
  });
  return {kByMass ? sum_long(mass) : count, -max_of(zero() - lowest), max_of(highest)};
}

template <bool kByMass>
static void keep_part(Band& band, float pivot, bool upper) {
  const f32x16 level = set(pivot);
  int kept = 0;
  for_each_vector(band.z, band.n, [&](f32x16 v, int at) {
    const mask16 over = v >= level;
    const mask16 chosen = upper ? over : ~over & first_lanes(band.n - at < 16 ? band.n - at : 16);
    if (!any(chosen)) return;
    if constexpr (kByMass) compress(band.e + kept, load(band.e + at), chosen);
    kept += compress(band.z + kept, v, chosen);
  });
  band.n = kept;
}

static float lowest_of(const float* z, int n) {
  f32x16 lowest = set(kInfinity);
  for (int i = 0; i < n; i += 16) {
    lowest = min(lowest, n - i < 16 ? load_first(z + i, n - i, kInfinity) : load(z + i));
  }
  return -max_of(zero() - lowest);
}

// The smallest top segment of a band whose measure (masses, or how many) reaches `target`, which is at
// least 1 and at most the whole band's; `high` is its largest logit. The band is halved in value around the
// crossing, its other part left behind, until all that remains is equal: the ties.
template <bool kByMass>
static Cut cut_at(Band band, float high, int64_t target) {
  float low = lowest_of(band.z, band.n);
  int64_t above = 0;  // the measure of what lies over the band
  while (low < high) {
    float pivot = (low > kLowest ? low : kLowest) * 0.5f + high * 0.5f;
    if (!(pivot > low)) pivot = high;
    const Part part = measure_from<kByMass>(band, pivot);
    // So many are above the pivot and no more are wanted. Masses may be 0: they go on to the last that counts.
    if (!kByMass && above + part.measure == target) return {part.lowest, kAllTies};
    const bool upper = above + part.measure >= target;
    keep_part<kByMass>(band, pivot, upper);
    if (upper) {
      low = part.lowest;
    } else {
      above += part.measure;
      high = part.highest;
    }
  }
  const int64_t each = kByMass ? mass_of(band.e[0]) : 1;
  return {low, each ? (target - above + each - 1) / each : kAllTies};
}

// Keeps a cut's top segment of a list.
static void keep_segment(Row& row, const Cut& cut, const SampleScratch& scratch) {
  const f32x16 level = set(cut.level);
  int64_t ties = cut.ties;
  int kept = 0;
  for_each_vector(row.z, row.n, [&](f32x16 v, int at) {
    const mask16 above = level < v;
    if (any(v == level) && ties != kAllTies) {
      for (int i = at; i < at + 16 && i < row.n; i++) {
        if (row.z[i] < cut.level || (row.z[i] == cut.level && ties-- <= 0)) continue;
        scratch.ids[kept] = row.ids[i];
        scratch.logits[kept++] = row.z[i];
      }
      return;
    }
    const mask16 chosen = ties == kAllTies ? v >= level : above;
    compress(scratch.ids + kept, load_int(row.ids + at), chosen);
    kept += compress(scratch.logits + kept, v, chosen);
  });
  row.n = kept;
}

}  // namespace unspool::UNSPOOL_ISA
