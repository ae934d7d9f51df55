// Truncations that go down the descending order of logits: top-H, tail-free sampling, mirostat 1.
#pragma once
// Included after top.h and sort.h.
#include <array>

namespace unspool::UNSPOOL_ISA {

// The first `count` of the descending order are above a cut whose level is the last one's; z descends.
static Cut cut_after(const float* z, int count) {
  int64_t ties = 1;
  while (ties < count && z[count - 1 - ties] == z[count - 1]) ties++;
  return {z[count - 1], ties, false};
}

// Partial sums of masses and moments.
struct Weight {
  int64_t mass, moment;
};

static Weight operator+(Weight a, Weight b) { return {a.mass + b.mass, a.moment + b.moment}; }

// What a pivot parts a band into.
struct WeighedPart {
  Weight weight;  // of what is at or above the pivot
  float lowest;   // of that
  float highest;  // of the rest
};

// For z in a band and the largest logit of the row.
static WeighedPart weigh_from(const Band& band, float top, float pivot) {
  i64x16 mass = zero_long(), moment = zero_long();
  f32x16 lowest = set(kInfinity), highest = set(-kInfinity);
  for_each_vector(band.z, band.n, [&](f32x16 v, int at) {
    const mask16 upper = v >= set(pivot);
    lowest = min(lowest, select(upper, v, set(kInfinity)));
    highest = max(highest, select(upper, set(-kInfinity), v));
    const f32x16 e = select(upper, load(band.e + at), zero());
    mass = mass + mass_of(e);
    moment = moment + moment_of(v - set(top), e);
  });
  return {{sum_long(mass), sum_long(moment)}, min_of(lowest), max_of(highest)};
}

// The entropy of the first candidates, as top-H has it, against what it may be.
struct EntropyBound {
  double most, log_total, total;
  bool summed;

  double of(Weight w) const {
    const double mass = static_cast<double>(w.mass), moment = static_cast<double>(w.moment);
    if (summed) return (moment + log_total * mass) / total;
    return natural_log(mass * 0x1p-40) + moment / mass;
  }
  bool passed(Weight w) const { return of(w) > most; }
  // Entropy grows with every candidate, and its terms are not negative, so that what is computed of it is off by
  // less than 2^-49 of it: this far from the bound one look says what holds for all sets that are smaller, or larger.
  bool surely_within(Weight w) const { return of(w) <= most * (1 - 0x1p-47); }
  bool surely_passed(Weight w) const { return of(w) > most * (1 + 0x1p-47); }
};

// Where a band of many most likely passes the bound, by every so many of its logits; a guess, from some above it to
// some below.
static std::array<float, 2> likely_end(const Band& band, float top, const EntropyBound& bound, Weight above) {
  constexpr int kSampled = 128, kOff = 10;
  const int step = band.n / kSampled;
  float z[kSampled + 16], e[kSampled + 16];
  for (int i = 0; i < kSampled; i++) z[i] = band.z[i * step];
  sort_descending(z, kSampled);
  for_each_vector(z, kSampled, [&](f32x16 v, int at) { store(e + at, exp_below_zero(v - set(top))); });
  int end = 0;
  for (; end < kSampled - 1 && !bound.passed(above); end++) {
    above = above + Weight{step * mass_of(e[end]), step * mass_of((top - z[end]) * e[end])};
  }
  return {z[end < kOff ? 0 : end - kOff], z[end + kOff < kSampled ? end + kOff : kSampled - 1]};
}

// What is left of a band around the place where its candidates first pass the bound.
struct Crossing {
  Band band;
  Weight above;      // of what comes before it
  float last_above;  // the lowest of that; infinite where there is none
  bool tied;         // whether all of it is equal
};

// Parts the band in value, as long as it is many and one look says on which side of the pivot the crossing is.
static Crossing narrow(Band band, float top, const EntropyBound& bound) {
  Crossing left = {band, {0, 0}, kInfinity, false};
  float low = lowest_of(band.z, band.n), high = largest_of(band.z, band.n);
  std::array<float, 2> likely = {kInfinity, kInfinity};
  if (band.n > 4096) likely = likely_end(band, top, bound, left.above);
  for (int turn = 0; left.band.n > 32 && low < high; turn++) {
    const float first = turn < 2 ? likely[static_cast<size_t>(turn)] : kInfinity;
    const float pivot = first > low && first < high ? first : between(low, high, turn);
    const WeighedPart part = weigh_from(left.band, top, pivot);
    const Weight reached = left.above + part.weight;
    const bool upper = bound.surely_passed(reached);
    if (!upper && !bound.surely_within(reached)) break;
    keep_part<true>(left.band, pivot, upper);
    if (upper) {
      low = part.lowest;
    } else {
      left.above = reached;
      left.last_above = part.lowest;
      high = part.highest;
    }
  }
  left.tied = low == high;
  return left;
}

// Where a band's candidates first pass the bound, in descending order: what comes before the first with which they
// do is kept. `passes`: whether they do at all.
static Cut cut_by_entropy(const Band& whole, float top, const EntropyBound& bound, const SampleScratch& scratch,
                          bool& passes) {
  auto [band, above, last_above, tied] = narrow(whole, top, bound);
  const auto weight_of = [top, e = band.e, z = band.z](int i) {
    const float d = top - z[i];
    return Weight{mass_of(e[i]), mass_of((d < 87.0f ? d : 87.0f) * e[i])};
  };
  int kept = 0;
  if (tied) {  // no order to find, and by halves
    const Weight each = weight_of(0), before = above;
    const auto with = [&](int count) {
      return Weight{before.mass + each.mass * count, before.moment + each.moment * count};
    };
    for (int step = 1 << 22; step; step /= 2) {
      if (kept + step <= band.n && bound.surely_within(with(kept + step))) kept += step;
    }
    above = with(kept);
  } else {
    sort_descending(band.z, band.n, band.e, scratch.counts);
    for_each_vector(band.z, band.n, [top, e = band.e](f32x16 v, int at) {
      store(e + at, exp_below_zero(v - set(top)));
    });
  }
  for (; kept < band.n; kept++) {
    above = above + weight_of(kept);
    if (bound.passed(above)) break;
  }
  passes = kept < band.n;
  if (kept > 0) return cut_after(band.z, kept);
  return last_above < kInfinity ? Cut{last_above, kAllTies, false} : cut_after(band.z, 1);
}

// Beyond this depth neither a mass nor a moment is left: 2^40 d exp(-d) < 1/2.
constexpr double kDeepest = 32.5;

// Of a row's candidates all that have a mass or a moment.
static Band band_of(const Row& row, const SampleScratch& scratch) {
  Band band = {scratch.band_z, scratch.band_e, 0};
  if (row.ids) {  // all, which costs less than to choose
    for_each_exp(row, [&](f32x16 q, f32x16 e, int at) {
      store(band.z + at, q);
      store(band.e + at, e);
    });
    band.n = row.n;
    return band;
  }
  const f32x16 deepest = set(static_cast<float>(row.top() - kDeepest));
  for_each_exp(row, [&](f32x16 q, f32x16 e, int) {
    const mask16 chosen = q >= deepest;
    compress(band.e + band.n, e, chosen);
    band.n += compress(band.z + band.n, q, chosen);
  });
  return band;
}

// Keeps what is above a cut; a dense row of which much is kept stays dense.
static void keep_above(Row& row, const Cut& cut, const SampleScratch& scratch) {
  if (!row.ids) {
    int kept = 0;
    for_each_logit(row, [&](f32x16 q, int) { kept += count_of(q >= set(cut.level)); });
    if (kept > row.n / kFewOf) return mask_segment(row, cut, ByLogit{}, scratch);
    list_from(row, below_quotient(row, cut.level), scratch);
  }
  keep_segment(row, cut, ByLogit{}, scratch);
}

// Top-H. More and more of a dense row's most probable candidates are looked at, until they pass the bound.
static void keep_top_h(Row& row, double share, double cap, bool summed, const SampleScratch& scratch) {
  if (cap > 0) keep_top_k(row, cap, Ties::kLowestId, scratch);
  weigh(row);
  const double total = static_cast<double>(row.total);
  const double log_total = natural_log(total * 0x1p-40);
  const double entropy = log_total + static_cast<double>(row.moment) / total;
  const EntropyBound bound = {share * entropy + entropy * 0x1p-24, log_total, total, summed};
  if (bound.surely_within({row.total, row.moment})) return;
  bool passes = false;
  for (const int look : {64, 512, num_maxima(row.n) / 2}) {
    if (row.ids) break;
    Row list = row;
    list_from(list, below(row, level_of_top(row, look, scratch)), scratch);
    const Band band = band_of(list, scratch);
    if (!bound.surely_passed(weigh_from(band, list.max, kLowest).weight)) continue;
    row = list;
    return keep_segment(row, cut_by_entropy(band, row.max, bound, scratch, passes), ByLogit{}, scratch);
  }
  const Cut cut = cut_by_entropy(band_of(row, scratch), row.top(), bound, scratch, passes);
  if (passes) keep_above(row, cut, scratch);
}

// Up to `most` of the largest logits that rules see, in descending order, to `out`; returns how many.
static int largest_logits(const Row& row, int most, float* out, const SampleScratch& scratch) {
  Row list = row;
  if (!row.ids) list_from(list, below(row, level_of_top(row, most, scratch)), scratch);
  std::memcpy(scratch.band_z, list.z, static_cast<size_t>(list.n) * sizeof(float));
  if (list.n <= most) {
    std::memcpy(out, scratch.band_z, static_cast<size_t>(list.n) * sizeof(float));
    sort_descending(out, list.n);
    return list.n;
  }
  const float level = cut_at<false>({scratch.band_z, nullptr, list.n}, list.n, most).level;
  int n = 0;
  for (int i = 0; i < list.n; i++) {
    if (list.z[i] > level) out[n++] = list.z[i];
  }
  sort_descending(out, n);
  for (; n < most; n++) out[n] = level;
  return n;
}

// Sixteen partial sums, lane by lane.
static double sum_lanes(const double (&lanes)[16]) {
  double total = 0;
  for (double lane : lanes) total += lane;
  return total;
}

// To the nearest whole number, ties to even, for numbers from 0 to 2^51.
static f64x16 round_small(f64x16 a) { return (a + set_double(0x1p52)) - set_double(0x1p52); }

// Tail-free sampling. A mass below 2^24 counts as 0, so that only those above it need their order.
static void keep_tail_free(Row& row, double share, const SampleScratch& scratch) {
  if (share >= 1) return;
  const int candidates = count_candidates(row);
  if (candidates < 3) return;
  Row list = row;
  list_from(list, below_quotient(row, row.top() - 11.1), scratch);  // 16 log 2 = 11.09
  float *z = scratch.band_z, *e = scratch.band_e;
  std::memcpy(z, list.z, static_cast<size_t>(list.n) * sizeof(float));
  sort_descending(z, list.n, e, scratch.counts);
  const f32x16 least = set(least_of_mass(int64_t{1} << 24));
  for_each_vector(z, list.n, [&](f32x16 v, int at) {  // 0 for lanes beyond the last
    const f32x16 mass = exp_below_zero(v - set(list.max)) * set(0x1p40f);
    store(e + at, select(mass >= least, mass, zero()));
  });
  store(e + list.n, zero());
  store(e + (list.n + 15) / 16 * 16, zero());
  const int bends = list.n < candidates - 2 ? list.n : candidates - 2;  // beyond these all are 0
  // Sixteen bends; masses, their sums and differences are whole numbers below 2^53, exact in double precision.
  const auto bends_at = [&](int i) {
    const auto mass = [&](int at) { return round_small(to_double(load(e + at))); };
    const f64x16 second = mass(i + 1);
    return abs(mass(i) - (second + second) + mass(i + 2));
  };
  double lane[16];
  f64x16 sums = set_double(0);
  int whole = 0;
  for (; whole + 16 <= bends; whole += 16) sums = sums + bends_at(whole);
  store_double(lane, sums);
  double total = sum_lanes(lane);
  store_double(lane, bends_at(whole));
  for (int i = whole; i < bends; i++) total += lane[i - whole];
  if (total == 0) return;
  const int64_t total_bends = static_cast<int64_t>(total);
  const double most = static_cast<double>(static_cast<int64_t>(share * total) + (total_bends >> 24));
  int kept = 1;
  if (most >= total) {
    kept = candidates - 1;
  } else {
    double sum = 0;
    for (int i = 0; sum <= most; i++) {
      if (i % 16 == 0) store_double(lane, bends_at(i));
      sum += lane[i % 16];
      kept += sum <= most;
    }
  }
  if (kept > list.n) return keep_top_k(row, kept, Ties::kLowestId, scratch);
  const Cut cut = cut_after(z, kept);
  row = list;
  keep_segment(row, cut, ByLogit{}, scratch);
}

constexpr int kMostRanked = 100;
constexpr double kLog2 = 0.6931471805599453;

static inline float exp(float x) {
  float lane[16];
  store(lane, exp(set(x)));
  return lane[0];
}

// 2^x, for x from -126 to 126, beyond which it is taken there.
static inline double power_of_2(double x) {
  const double within = x > 126.0 ? 126.0 : x < -126.0 ? -126.0 : x;
  return exp(static_cast<float>(within * kLog2));
}

// Mirostat 1: how many candidates Zipf's law, its exponent estimated from the first of them, gives for mu.
static int zipf_k(const Row& row, double mu, int vocabulary, const SampleScratch& scratch) {
  const int n = count_candidates(row);
  if (n == 1) return 1;
  float z[kMostRanked + 16];
  const int ranked = largest_logits(row, kMostRanked, z, scratch);
  double upper = 0, lower = 0;
  for (int i = 0; i + 1 < ranked; i++) {
    const double t = natural_log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    upper += t * static_cast<double>(z[i] - z[i + 1]);
    lower += t * t;
  }
  const double s = upper / lower, e = s - 1, power = power_of_2(mu);
  const double log_size = natural_log(static_cast<double>(vocabulary));
  const bool near_one = e < 1e-6 && e > -1e-6;
  const double x =
      near_one ? power / log_size : e * power / (1 - static_cast<double>(exp(static_cast<float>(-e * log_size))));
  const double grown = natural_log(x);
  if (s < 1e-6) return grown > 0 ? n : 1;
  const double exponent = grown / s;
  if (exponent >= 30) return n;
  const int64_t k = static_cast<int64_t>(exp(static_cast<float>(exponent)));
  return k < 1 ? 1 : k > n ? n : static_cast<int>(k);
}

}  // namespace unspool::UNSPOOL_ISA
