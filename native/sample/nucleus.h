// The smallest set of candidates, by descending key, that weighs enough: top-p and typical sampling.
#pragma once
// Included after top.h.

namespace unspool::UNSPOOL_ISA {

// The top segment of a list whose masses reach `target`, if there is one.
template <class Key>
static bool find_cut(const Row& list, const Key& key, int64_t target, const SampleScratch& scratch, Cut& cut) {
  Band band = {scratch.band_z, scratch.band_e, list.n};
  i64x16 total = zero_long();
  for_each_exp(list, [&](f32x16 q, f32x16 e, int at) {
    total = total + mass_of(e);
    store(band.z + at, key(q));
    store(band.e + at, e);
  });
  const int64_t mass = sum_long(total);
  if (mass < target) return false;
  cut = cut_at<true>(band, mass, target);
  return true;
}

// Keys between which a crossing most likely is.
struct Bracket {
  float low, high;
};

constexpr Bracket kWhole = {kLowest, kInfinity};

// Enough for a bracket of a few percent, so few that they cost little beside a pass over the row.
constexpr int kSampledVectors = 96;

// A settled dense row's mass by key: that of its most probable candidates, `best`, from `level` up, one by one, and of
// the rest that of every so many vectors.
template <class Key>
class Sample {
 public:
  Sample(const Row& row, const Row& best, float level, const Key& key, const SampleScratch& scratch)
      : row_(row), best_(best), level_(set(level)), key_(key), scratch_(scratch),
        step_(row.n / 16 / kSampledVectors * 16) {}

  bool is_small_part() const { return step_ >= 32; }

  // The keys at which `share` of the mass is reached, less and more what that may be off: of the mass on one side of
  // the crossing, as much of that on the other side as it is of the whole.
  Bracket bracket_of(double share) {
    const float middle = level_at(share, kInfinity);
    take(middle);
    const double below = share * share * sum(square_below_), above = (1 - share) * (1 - share) * sum(square_above_);
    const double off = 3 * __builtin_sqrt(below + above) * 0x1p40 / static_cast<double>(mass_);
    return {share + off < 1 ? level_at(share + off, middle) : kLowest,
            share > off ? level_at(share - off, middle) : kInfinity};
  }

 private:
  float level_at(double share, float pivot) {
    const Band band = take(pivot);
    const int64_t target = static_cast<int64_t>(share * static_cast<double>(mass_));
    return cut_at<true>(band, mass_, target < 1 ? 1 : target).level;
  }

  // Fills the band, its mass, and the sampled ones' squares on both sides of a key.
  Band take(float pivot) {
    const f32x16 top = set(row_.max), part = set(16.0f / static_cast<float>(step_));
    Band band = {scratch_.band_z, scratch_.band_e, 0};
    i64x16 mass = zero_long();
    square_below_ = square_above_ = zero();
    for (int from = 0; from + 16 <= row_.n; from += step_) {
      const f32x16 z = load(row_.z + from), e = exp_below_zero(z - top), k = key_(z);
      const mask16 rest = z < level_;
      mass = mass + keep(mass_of(e), rest);
      const f32x16 square = select(rest, e * e, zero());
      square_below_ = square_below_ + select(k < set(pivot), square, zero());
      square_above_ = square_above_ + select(k < set(pivot), zero(), square);
      compress(band.e + band.n, e, rest);
      band.n += compress(band.z + band.n, k, rest);
    }
    for_each_exp(best_, [&](f32x16 q, f32x16 e, int at) {
      mass = mass + mass_of(e * part);
      store(band.z + band.n + at, key_(q));
      store(band.e + band.n + at, e * part);
    });
    band.n += best_.n;
    mass_ = sum_long(mass);
    return band;
  }

  const Row &row_, &best_;
  f32x16 level_;
  Key key_;
  const SampleScratch& scratch_;
  int step_;
  int64_t mass_ = 0;
  f32x16 square_below_ = zero(), square_above_ = zero();
};

// Where a segment ends: within a bracket of keys, or not.
enum class Found { kHere, kAbove, kBelow };

// The top segment of a dense row that reaches `target`, if it ends within the bracket: what is above that is only
// summed. `most` comes to how many candidates are kept, or a few more.
template <class Key>
static Found find_cut_within(const Row& row, const Key& key, int64_t target, Bracket bracket,
                             const SampleScratch& scratch, Cut& cut, int64_t& most) {
  const f32x16 low = set(bracket.low), high = set(bracket.high);
  Band band = {scratch.band_z, scratch.band_e, 0};
  i64x16 above = zero_long();
  most = 0;
  for_each_exp(row, [&](f32x16 q, f32x16 e, int) {
    const f32x16 k = key(q);
    const mask16 higher = high < k, from_low = k >= low, within = from_low & ~higher;
    above = above + mass_of(select(higher, e, zero()));
    most += count_of(from_low);
    compress(band.e + band.n, e, within);
    band.n += compress(band.z + band.n, k, within);
  });
  i64x16 in_band = zero_long();
  for_each_vector(band.e, band.n, [&](f32x16 e, int) { in_band = in_band + mass_of(max(e, zero())); });
  const int64_t passed = sum_long(above), within = sum_long(in_band);
  if (passed >= target) return Found::kAbove;
  if (passed + within < target) return Found::kBelow;
  cut = cut_at<true>(band, within, target - passed);
  return Found::kHere;
}

// So many of the most probable candidates are looked at first.
constexpr int kFirstLook = 512;

// Keeps the smallest top segment by key that weighs `target`, from 1 up; all where all weigh less.
template <class Key>
static void keep_until(Row& row, const Key& key, int64_t target, Ties ties, const SampleScratch& scratch) {
  weigh(row);
  if (row.total < target) return;
  Cut cut{};
  if (row.ids) {
    find_cut(row, key, target, scratch, cut);
  } else {
    // If the most probable candidates alone weigh enough, no key of the segment is below the lowest that is needed of
    // them; a level of keys is a level of logits.
    Row best = row;
    const float divisor = row.divisor, level = below(row, level_of_top(row, kFirstLook, scratch));
    list_from(best, level, scratch);
    if (find_cut(best, key, target, scratch, cut)) {
      list_from(row, below_quotient(row, key.lowest(cut.level)), scratch);
      find_cut(row, key, target, scratch, cut);
    } else {
      settle(row, scratch);  // the passes to come are several
      int64_t most = 0;
      const double share = static_cast<double>(target) / static_cast<double>(row.total);
      Sample<Key> sample(row, best, level / divisor, key, scratch);
      const Bracket likely = sample.is_small_part() ? sample.bracket_of(share) : kWhole;
      const Found found = find_cut_within(row, key, target, likely, scratch, cut, most);
      if (found == Found::kAbove) find_cut_within(row, key, target, {likely.high, kInfinity}, scratch, cut, most);
      if (found == Found::kBelow) find_cut_within(row, key, target, {kLowest, likely.low}, scratch, cut, most);
      if (most > row.n / kFewOf) return mask_segment(row, with_ties(cut, ties), key, scratch);
      list_from(row, below_quotient(row, key.lowest(cut.level)), scratch);
    }
  }
  keep_segment(row, with_ties(cut, ties), key, scratch);
  row.max = largest_of(row.z, row.n);
}

}  // namespace unspool::UNSPOOL_ISA
