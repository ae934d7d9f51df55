// The rules of a chain, each on a row that is still dense or already a list.
#pragma once
// Included after row.h and cut.h.

namespace unspool::UNSPOOL_ISA {

// Tokens in scope of a row's penalties; those seen once are marked, so that a repeated one counts once.
struct History {
  const int32_t* tokens;
  int64_t n;
};

static inline float penalized(float z, float r) { return z > 0 ? z / r : z * r; }

// Repetition penalty.
static void penalize(Row& row, float r, const History& history, const SampleScratch& scratch) {
  if (history.n == 0) return;
  settle(row, scratch);
  if (!row.ids && row.z != scratch.row) {
    std::memcpy(scratch.row, row.z, static_cast<size_t>(row.n) * sizeof(float));
    row.z = scratch.row;
  }
  const auto bit = [](int32_t token) { return uint64_t{1} << (token & 63); };
  for (int64_t i = 0; i < history.n; i++) {
    const int32_t token = history.tokens[i];
    const bool again = scratch.seen[token >> 6] & bit(token);
    scratch.seen[token >> 6] |= bit(token);
    if (!row.ids && !again) scratch.row[token] = penalized(scratch.row[token], r);
  }
  if (row.ids) {
    for (int i = 0; i < row.n; i++) {
      const int32_t token = row.ids[i];
      if (scratch.seen[token >> 6] & bit(token)) scratch.logits[i] = penalized(scratch.logits[i], r);
    }
  }
  for (int64_t i = 0; i < history.n; i++) scratch.seen[history.tokens[i] >> 6] = 0;
  RowFacts facts;
  survey(row.z, row.n, scratch.maxima, facts);
  row.max = facts.max;
  row.maxima = scratch.maxima;
  row.total = 0;
}

static void apply_temperature(Row& row, float temperature, const SampleScratch& scratch) {
  settle(row, scratch);
  if (!row.ids) {
    row.divisor = temperature;
    return;
  }
  divide(row.z, row.n, temperature, scratch.logits);
  row.max /= temperature;
}

// A level that at least k logits of a dense row reach and not many more do: the k-th largest of the maxima
// of eight logits each. For a large k, one that all tokens reach that are not banned.
static float level_of_top(const Row& row, int64_t k, const SampleScratch& scratch) {
  if (k == 1) return row.max;
  const int n = num_maxima(row.n);
  if (k > n / 2) return kLowest;
  std::memcpy(scratch.band_z, row.maxima, static_cast<size_t>(n) * sizeof(float));
  return cut_at<false>({scratch.band_z, nullptr, n}, row.max, k).level;
}

static void keep_top_k(Row& row, double value, const SampleScratch& scratch) {
  if (value >= row.n) return;
  const int64_t k = static_cast<int64_t>(value);
  if (!row.ids) list_from(row, below(row, level_of_top(row, k, scratch)), scratch);
  if (k >= row.n) return;
  std::memcpy(scratch.band_z, row.z, static_cast<size_t>(row.n) * sizeof(float));
  keep_segment(row, cut_at<false>({scratch.band_z, nullptr, row.n}, row.max, k), scratch);
}

// The exponentials of a list's logits to its band; returns the total mass.
static int64_t weigh_band(const Row& row, const SampleScratch& scratch) {
  i64x16 total = zero_long();
  for_each_vector(row.z, row.n, [&](f32x16 v, int at) {
    const f32x16 e = exp_below_zero(v - set(row.max));
    total = total + mass_of(e);
    store(scratch.band_z + at, v);
    store(scratch.band_e + at, e);
  });
  return sum_long(total);
}

// The total mass of a dense row.
static int64_t total_of(const Row& row) {
  if (row.total) return row.total;
  RowFacts facts;
  weigh(row.z, row.n, row.max, nullptr, facts);
  return facts.total;
}

// Top-p. Of a dense row, tokens that together weigh less than all that the nucleus leaves out are left out
// first: those under the average of that mass. The margin of 0.001 covers exp's rounding, and the rounding
// of masses where they are not small; where they may be, only what weighs nothing is left out.
static void keep_top_p(Row& row, double p, const SampleScratch& scratch) {
  if (p >= 1) return;
  settle(row, scratch);
  const int64_t total = row.ids ? weigh_band(row, scratch) : total_of(row);
  int64_t target = static_cast<int64_t>(p * static_cast<double>(total)) - (total >> 24);
  if (target < 1) target = 1;
  if (!row.ids) {
    const double share = static_cast<double>(total - target) / row.n * 0x1p-40;
    const double depth = share > 0x1p-30 ? -natural_log(share) : 30.0;
    list_from(row, static_cast<float>(row.max - depth - 0.001), scratch);
    weigh_band(row, scratch);
  }
  keep_segment(row, cut_at<true>({scratch.band_z, scratch.band_e, row.n}, row.max, target), scratch);
}

// Min-p, for masses w relative to the largest, 2^40. Of a dense row, only what is near the level is weighed:
// a mass that rounds to it is at least half a unit less.
static void keep_min_p(Row& row, double m, const SampleScratch& scratch) {
  const int64_t full = static_cast<int64_t>(m * 0x1p40), level = full - (full >> 21);
  if (level < 1) return;
  const double depth = -natural_log((static_cast<double>(level) - 0.5) * 0x1p-40) + 0.001;
  list_from(row, below(row, row.max - row.divisor * depth), scratch);
  int kept = 0;
  for_each_vector(row.z, row.n, [&](f32x16 v, int at) {
    float e[16];
    store(e, exp_below_zero(v - set(row.max)));
    for (int i = 0; i < 16 && at + i < row.n; i++) {
      if (mass_of(e[i]) < level) continue;
      scratch.ids[kept] = row.ids[at + i];
      scratch.logits[kept++] = row.z[at + i];
    }
  });
  row.n = kept;
}

// Applies one entry of a chain; false where its arithmetic takes the largest logit beyond float32.
static bool apply(RuleKind kind, double value, Row& row, const History& history, const SampleScratch& scratch) {
  switch (kind) {
    case RuleKind::kRepetitionPenalty: penalize(row, static_cast<float>(value), history, scratch); break;
    case RuleKind::kTemperature: apply_temperature(row, static_cast<float>(value), scratch); break;
    case RuleKind::kTopK: keep_top_k(row, value, scratch); break;
    case RuleKind::kTopP: keep_top_p(row, value, scratch); break;
    case RuleKind::kMinP: keep_min_p(row, value, scratch); break;
  }
  const float max = row.max / row.divisor;
  return max < kInfinity && max > -kInfinity;
}

}  // namespace unspool::UNSPOOL_ISA
