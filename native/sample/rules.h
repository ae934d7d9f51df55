// The rules of a chain, each on a row that is still dense or already a list.
#pragma once
// Included after nucleus.h, ranked.h and edit.h.

namespace unspool::UNSPOOL_ISA {

constexpr double kUnit = 0x1p40;

static double total_of(Row& row) {
  weigh(row);
  return static_cast<double>(row.total);
}

static void divide_by(Row& row, float temperature, const SampleScratch& scratch) {
  settle(row, scratch);
  row.weighed = false;
  if (row.ids) {
    divide_list(row, temperature, scratch);
  } else {
    row.divisor = temperature;
  }
}

static double entropy_of(Row& row) {
  const double total = total_of(row);
  return natural_log(total * 0x1p-40) + static_cast<double>(row.moment) / total;
}

// x^exponent for x from 0 to 1.
static double power(double x, double exponent) {
  if (exponent == 1 || x == 1) return x;
  if (x <= 0) return 0;
  return exp(static_cast<float>(exponent * natural_log(x)));
}

static void apply_dynamic_temperature(Row& row, const double* values, const SampleScratch& scratch) {
  const int n = count_candidates(row);
  if (n == 1) return;
  const double whole = entropy_of(row) / natural_log(static_cast<double>(n));
  const double temperature = values[0] + (values[1] - values[0]) * power(whole < 1.0 ? whole : 1.0, values[2]);
  if (temperature < 1e-9) return keep_best(row, scratch);
  divide_by(row, static_cast<float>(temperature), scratch);
}

// Top-n-sigma. Sums of d and of d^2, d = top - q in double precision, in an order that the token ids fix: of each id
// modulo 16 in order, then lane by lane. d <= n sigma is a threshold on logits too: a first guess of it is moved to
// where that holds.
static void keep_top_n_sigma(Row& row, double sigmas, const SampleScratch& scratch) {
  const double top = row.top();
  double sums[16] = {}, squares[16] = {};
  int n = 0;
  if (row.ids) {
    for (int i = 0; i < row.n; i++) {
      const double d = top - static_cast<double>(row.z[i]);
      sums[row.ids[i] & 15] += d;
      squares[row.ids[i] & 15] += d * d;
    }
    n = row.n;
  } else {
    f64x16 sum = set_double(0), square = set_double(0);
    for_each_logit(row, [&](f32x16 q, int) {
      const mask16 there = over(q, set(-kInfinity));
      const f64x16 d = set_double(top) - to_double(select(there, q, set(row.top())));  // what is none adds 0
      sum = sum + d;
      square = square + d * d;
      n += count_of(there);
    });
    store_double(sums, sum);
    store_double(squares, square);
  }
  const double mean = sum_lanes(sums) / n;
  const double variance = sum_lanes(squares) / n - mean * mean;
  const double most = sigmas * __builtin_sqrt(variance > 0 ? variance : 0.0);
  const auto within = [&](float q) { return top - static_cast<double>(q) <= most; };
  if (within(kLowest)) return;
  float level = static_cast<float>(top - most);
  while (within(level)) level = __builtin_nextafterf(level, -kInfinity);
  while (!within(level)) level = __builtin_nextafterf(level, kInfinity);
  list_from(row, below_quotient(row, level), scratch);
  keep_list(row, scratch, [&](f32x16 v, int) { return v >= set(level); });
}

static void keep_top_p(Row& row, const double* values, const SampleScratch& scratch) {
  if (values[0] >= 1) return;
  weigh(row);
  const int64_t exact = static_cast<int64_t>(values[0] * static_cast<double>(row.total)), slack = row.total >> 24;
  const int64_t target = values[2] != 0 ? exact + slack + 1 : exact - slack;
  keep_until(row, ByLogit{}, target < 1 ? 1 : target, static_cast<Ties>(values[1]), scratch);
}

static void keep_typical(Row& row, const double* values, const SampleScratch& scratch) {
  if (values[0] >= 1) return;
  const double total = total_of(row);
  const float mean = static_cast<float>(static_cast<double>(row.moment) / total);
  const int64_t target = static_cast<int64_t>(values[0] * total) - (row.total >> 24);
  keep_until(row, ByTypicality{row.top(), mean}, target < 1 ? 1 : target, static_cast<Ties>(values[1]), scratch);
}

static void keep_eta(Row& row, double e, const SampleScratch& scratch) {
  const double spread = __builtin_sqrt(e) * static_cast<double>(exp(static_cast<float>(-entropy_of(row))));
  keep_from(row, static_cast<int64_t>((e < spread ? e : spread) * total_of(row)), scratch);
}

static void keep_p_less(Row& row, const SampleScratch& scratch) {
  i64x16 squares = zero_long();
  for_each_exp(row, [&](f32x16, f32x16 e, int) { squares = squares + mass_of(e * e); });
  const double collision = static_cast<double>(sum_long(squares));
  keep_from(row, static_cast<int64_t>(collision * (kUnit / total_of(row))), scratch);
}

static void apply_xtc(Row& row, const double* values, const NoiseSource& source, const SampleScratch& scratch) {
  const double coin = (static_cast<double>(noise_bits(source, 0, Purpose::kCoin)) + 0.5) * 0x1p-32;
  if (coin < values[0]) drop_top(row, static_cast<int64_t>(values[1] * total_of(row)), scratch);
}

// Adaptive-p.
static void turn_towards(Row& row, double aim, const SampleScratch& scratch) {
  const f32x16 scale = set(static_cast<float>(kUnit / total_of(row))), target = set(static_cast<float>(aim));
  const f32x16 top = set(row.top()), steepness = set(static_cast<float>(1 / 0.3));
  const auto liking = [&](f32x16 q, int) {
    const f32x16 u = abs(exp(q - top) * scale - target) * steepness;
    const f32x16 liked = set(5.0f) - set(10.0f) * u * u / (set(1.0f) + u);
    return select(over(q, set(-kInfinity)), liked, set(-kInfinity));
  };
  if (!row.ids) return change_all(row, scratch, liking);
  for_each_vector(row.z, row.n, [&](f32x16 v, int at) { store(scratch.logits + at, liking(v, at)); });
  row.max = largest_of(row.z, row.n);
  row.weighed = false;
}

// A law on the way, for a token's surprise.
struct Witness {
  bool there = false;
  Row row;
};

static void look(Witness& witness, Row& row, const SampleScratch& scratch) {
  weigh(row);
  witness = {true, row};
  if (row.ids) {
    std::memcpy(scratch.witness_ids, row.ids, static_cast<size_t>(row.n) * sizeof(int32_t));
    std::memcpy(scratch.witness_logits, row.z, static_cast<size_t>(row.n) * sizeof(float));
    witness.row.ids = scratch.witness_ids;
    witness.row.z = scratch.witness_logits;
  } else if (row.z == row.out) {
    row.out = scratch.second_row;  // this one stays as it is
  }
}

// One entry of a chain, and what it works with.
struct Entry {
  RuleKind kind;
  const double* values;
  Edits edits;
  NoiseSource source;
  int vocabulary;
};

static void transform(Row& row, const Entry& entry, Witness& seen, const SampleScratch& scratch) {
  const double* v = entry.values;
  switch (entry.kind) {
    case RuleKind::kRepetitionPenalty: return penalize(row, static_cast<float>(v[0]), entry.edits, scratch);
    case RuleKind::kTemperature: return divide_by(row, static_cast<float>(v[0]), scratch);
    case RuleKind::kTopK: return keep_top_k(row, v[0], static_cast<Ties>(v[1]), scratch);
    case RuleKind::kTopP: return keep_top_p(row, v, scratch);
    case RuleKind::kMinP: return keep_from(row, static_cast<int64_t>(v[0] * kUnit), scratch);
    case RuleKind::kAdd: return add(row, entry.edits, scratch);
    case RuleKind::kBan: return ban(row, entry.edits, scratch);
    case RuleKind::kAllow: return allow(row, entry.edits, scratch);
    case RuleKind::kDynamicTemperature: return apply_dynamic_temperature(row, v, scratch);
    case RuleKind::kTopNSigma: return keep_top_n_sigma(row, v[0], scratch);
    case RuleKind::kTypical: return keep_typical(row, v, scratch);
    case RuleKind::kEpsilon: return keep_from(row, static_cast<int64_t>(v[0] * total_of(row)), scratch);
    case RuleKind::kEta: return keep_eta(row, v[0], scratch);
    case RuleKind::kTopA: {
      return keep_from(row, static_cast<int64_t>(v[0] * kUnit * (kUnit / total_of(row))), scratch);
    }
    case RuleKind::kTailFree: return keep_tail_free(row, v[0], scratch);
    case RuleKind::kTopH: return keep_top_h(row, v[0], v[1], v[2] != 0, scratch);
    case RuleKind::kPLess: return keep_p_less(row, scratch);
    case RuleKind::kXtc: return apply_xtc(row, v, entry.source, scratch);
    case RuleKind::kMirostat1: {
      return keep_top_k(row, zipf_k(row, v[0], entry.vocabulary, scratch), Ties::kLowestId, scratch);
    }
    case RuleKind::kAdaptiveP: return turn_towards(row, v[0], scratch);
    case RuleKind::kWitness: return look(seen, row, scratch);
  }
}

// Whether there still is a law. Rules that ban may leave nothing; one that scales may take all beyond float32.
static RowStatus status_of(const Row& row, RuleKind last) {
  const float top = row.n ? row.top() : -kInfinity;
  if (top == kInfinity) return RowStatus::kNotANumber;
  if (top > -kInfinity) return RowStatus::kOk;
  const bool scaled = last == RuleKind::kTemperature || last == RuleKind::kDynamicTemperature ||
                      last == RuleKind::kRepetitionPenalty;
  return scaled ? RowStatus::kNotANumber : RowStatus::kEmpty;
}

}  // namespace unspool::UNSPOOL_ISA
