// Where a truncation that keeps the largest of something cuts, without sorting.
#pragma once
// Included after row.h.

namespace unspool::UNSPOOL_ISA {

// A top segment of a row by some key of its logits: what is above `level`, and so many of those that equal it,
// by ascending or descending id. Every truncation that takes candidates by descending key keeps a segment of this form.
struct Cut {
  float level;
  int64_t ties;
  bool from_last;
};

constexpr int64_t kAllTies = std::numeric_limits<int64_t>::max();

static inline Cut with_ties(Cut cut, Ties ties) {
  return {cut.level, ties == Ties::kAll ? kAllTies : cut.ties, ties == Ties::kHighestId};
}

// Keys: functions of the logits q that rules see, whose largest are kept.
struct ByLogit {
  f32x16 operator()(f32x16 q) const { return q; }
  // What every logit with a key of `level` is above.
  double lowest(float level) const { return level; }
};

// Minus the distance of -log p from the entropy: that of d = top - q from its mean.
struct ByTypicality {
  float top, mean;
  f32x16 operator()(f32x16 q) const { return zero() - abs((zero() - (q - set(top))) - set(mean)); }
  double lowest(float level) const {
    const auto size = [](float x) { return static_cast<double>(x < 0 ? -x : x); };
    const double depth = static_cast<double>(mean) - level;
    return top - depth - (size(top) + size(mean) + size(level)) * 0x1p-20 - 0x1p-100;
  }
};

// What is under selection: keys, and for masses the exponentials of their logits.
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
      count += count_of(upper);
    }
  });
  return {kByMass ? sum_long(mass) : count, min_of(lowest), max_of(highest)};
}

template <bool kByMass>
static void keep_part(Band& band, float pivot, bool upper) {
  const f32x16 level = set(pivot);
  int kept = 0;
  for_each_vector(band.z, band.n, [&](f32x16 v, int at) {
    const mask16 over = v >= level;
    const mask16 chosen = upper ? over : ~over & first_lanes(band.n - at < 16 ? band.n - at : 16);
    if constexpr (kByMass) compress(band.e + kept, load(band.e + at), chosen);
    kept += compress(band.z + kept, v, chosen);
  });
  band.n = kept;
}

// A float's place among all of them, and a place's float.
static inline int32_t order_of(float x) {
  int32_t word;
  std::memcpy(&word, &x, 4);
  return word < 0 ? word ^ 0x7fffffff : word;
}

static inline float float_at(int32_t order) {
  const int32_t word = order < 0 ? order ^ 0x7fffffff : order;
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

// Halves the floats that there are between two, the upper one with them.
[[gnu::noinline]] static float middle_float(float low, float high) {
  const int64_t first = order_of(low);
  return float_at(static_cast<int32_t>(first + (order_of(high) - first + 1) / 2));
}

// More turns than most rows take.
constexpr int kEasyTurns = 16;

// A value between two, above the lower one. Where values lie ever nearer to 0 their distance may be halved a hundred
// times and more: every other late turn halves how many floats there are.
static inline float between(float low, float high, int turn) {
  const float from = low > kLowest ? low : kLowest;
  const bool by_count = turn > kEasyTurns && turn % 2 == 0;
  const float pivot = by_count ? middle_float(from, high) : from * 0.5f + high * 0.5f;
  return pivot > low ? pivot : high;
}

static float lowest_of(const float* z, int n) {
  f32x16 lowest = set(kInfinity);
  for (int i = 0; i < n; i += 16) {
    lowest = min(lowest, n - i < 16 ? load_first(z + i, n - i, kInfinity) : load(z + i));
  }
  return min_of(lowest);
}

// Where a segment of a share of a band's measure most likely ends, were the measure spread evenly over its values; by
// turns a little to either side of that, so that both sides of the crossing are left behind.
static inline float guess(float low, float high, double share, int turn) {
  const double at = share + (turn % 2 ? 0.08 : -0.08);
  const double depth = at < 0.1 ? 0.1 : at > 0.9 ? 0.9 : at;
  const float pivot = static_cast<float>(high - (static_cast<double>(high) - low) * depth);
  return pivot > low && pivot < high ? pivot : between(low, high, turn);
}

// The smallest top segment of a band whose measure (masses, or how many) reaches `target`, which is at
// least 1 and at most the whole band's, `measure`. The band is parted in value around the crossing, its other part left
// behind, until all that remains is equal: the ties.
template <bool kByMass>
static Cut cut_at(Band band, int64_t measure, int64_t target) {
  float low = lowest_of(band.z, band.n), high = largest_of(band.z, band.n);
  int64_t above = 0;  // the measure of what lies over the band
  for (int turn = 0; low < high; turn++) {
    const double share = static_cast<double>(target - above) / static_cast<double>(measure);
    const bool guesses = turn % 4 < 2 && share > 0.05 && low > kLowest;
    const float pivot = guesses ? guess(low, high, share, turn) : between(low, high, turn);
    const Part part = measure_from<kByMass>(band, pivot);
    // So many are above the pivot and no more are wanted. Masses may be 0: they go on to the last that counts.
    if (!kByMass && above + part.measure == target) return {part.lowest, kAllTies, false};
    const bool upper = above + part.measure >= target;
    keep_part<kByMass>(band, pivot, upper);
    if (upper) {
      measure = part.measure;
      low = part.lowest;
    } else {
      measure -= part.measure;
      above += part.measure;
      high = part.highest;
    }
  }
  const int64_t each = kByMass ? mass_of(band.e[0]) : 1;
  return {low, each ? (target - above + each - 1) / each : kAllTies, false};
}

// Which of a row's candidates a cut keeps, as it is asked for them in order.
template <class Key>
class Segment {
 public:
  // `tied`: how many keys equal the level; needed where the last of them are kept.
  Segment(const Cut& cut, const Key& key, int64_t tied)
      : level_(set(cut.level)), key_(key), first_(cut.from_last && cut.ties < tied ? tied - cut.ties : 0),
        last_(cut.from_last || cut.ties == kAllTies ? kAllTies : cut.ties) {}

  // Of a vector of logits.
  mask16 operator()(f32x16 q) {
    const f32x16 k = key_(q);
    const mask16 equal = k == level_, above = level_ < k;
    const int count = count_of(equal);
    if (count == 0) return above;
    const int64_t from = seen_;
    seen_ += count;
    if (from >= first_ && seen_ <= last_) return k >= level_;
    if (seen_ <= first_ || from >= last_) return above;
    float lane[16];
    uint32_t left = bits(equal);
    store(lane, select(above, set(1.0f), zero()));
    for (int64_t i = from; left; left &= left - 1, i++) {
      lane[__builtin_ctz(left)] = i >= first_ && i < last_ ? 1.0f : 0.0f;
    }
    return zero() < load(lane);
  }

 private:
  f32x16 level_;
  Key key_;
  int64_t first_, last_, seen_ = 0;
};

// How many candidates' keys equal the level of a cut, where that matters.
template <class Key>
static int64_t count_ties(const Row& row, const Cut& cut, const Key& key) {
  if (!cut.from_last || cut.ties == kAllTies) return 0;
  int64_t tied = 0;
  for_each_logit(row, [&](f32x16 q, int) { tied += count_of(key(q) == set(cut.level)); });
  return tied;
}

// Keeps a cut's top segment of a list.
template <class Key>
static void keep_segment(Row& row, const Cut& cut, const Key& key, const SampleScratch& scratch) {
  Segment<Key> segment(cut, key, count_ties(row, cut, key));
  keep_list(row, scratch, [&](f32x16 q, int) { return segment(q); });
}

// The same of a dense row, which stays dense.
template <class Key>
static void mask_segment(Row& row, const Cut& cut, const Key& key, const SampleScratch& scratch) {
  Segment<Key> segment(cut, key, count_ties(row, cut, key));
  change_all(row, scratch, [&](f32x16 q, int) { return select(segment(q), q, set(-kInfinity)); });
}

}  // namespace unspool::UNSPOOL_ISA
