// The draw: argmin E / w over what a chain has kept, the lowest id of tied ones.
#pragma once
// Included after row.h and noise.h.

namespace unspool::UNSPOOL_ISA {

// The candidate that is ahead.
struct Race {
  double least = 0;
  float bound = kInfinity;  // 2^64 times the least, rounded up
  int32_t token = -1;
};

// Sixteen candidates enter, with x = z - max z, at most `above` is exp(x): the ids of lanes come by lane. E =
// -log(1 - v) is at least v, so that E / w cannot be below the least unless v / w is: few logarithms are taken. v is
// taken with 24 bits, rounded down, and w / 2^40 is at most e + 2^-41.
template <class Token>
static inline void enter(Race& race, f32x16 x, f32x16 at_most, i32x16 noise, const NoiseSource& source,
                         const Token& token_of) {
  const f32x16 v = to_float(shift_right<8>(noise));
  uint32_t left = bits(v < (at_most + set(0x1p-41f)) * set(race.bound));
  if (!left) return;
  float each[16];
  int32_t random[16];
  store(each, exp_below_zero(x));
  store_int(random, noise);
  for (; left; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const int64_t mass = mass_of(each[lane]);
    if (mass == 0) continue;
    const int32_t token = token_of(lane);
    const double ratio =
        exponential(source, token, static_cast<uint32_t>(random[lane])) / static_cast<double>(mass);
    if (race.token >= 0 && !(ratio < race.least)) continue;
    race.token = token;
    race.least = ratio;
    race.bound = static_cast<float>(ratio * (0x1p64 * (1 + 0x1p-13)));
  }
}

// e^x for x in -87..0, from above by up to 6.2% and from below by less than 2^-14 of it: a float's bits, read as a
// number, are a chord of the logarithm.
static inline f32x16 about_exp(f32x16 x) {
  return as_float(to_int(max(x, set(-87.0f)) * set(0x1p23f * 1.44269504f) + set(127 * 0x1p23f)));
}

// A list of many spread over a dense row, without maxima.
static Row spread(const Row& list, int vocabulary) {
  for (int i = 0; i < vocabulary; i += 16) store(list.out + i, set(-kInfinity));
  for (int i = 0; i < list.n; i++) list.out[list.ids[i]] = list.z[i];
  Row row = list;
  row.z = list.out;
  row.ids = nullptr;
  row.n = vocabulary;
  return row;
}

// The token that is drawn. Where a dense row's masses are not summed yet, they are on the way.
static int32_t draw_dense(Row& row, const NoiseSource& source) {
  Race race;
  const f32x16 top = set(row.top()), divisor = set(row.divisor);
  i64x16 total = zero_long();
  constexpr int kVectors = kNoiseTokens / 16;
  const auto pass = [&](auto weighed, const auto& divided) {
    for (int from = 0; from < row.n; from += kNoiseTokens) {
      i32x16 noise[kVectors];
      noise_run(source, from, noise);
      f32x16 x[kVectors], e[kVectors];
      for (int i = 0; i < kVectors; i++) {
        const int at = from + 16 * i;
        const f32x16 z = at + 16 <= row.n ? load(row.z + at)
                                          : load_first(row.z + at, at < row.n ? row.n - at : 0, -kInfinity);
        x[i] = divided(z) - top;
      }
      if constexpr (decltype(weighed)::value) {
        for (int i = 0; i < kVectors; i++) e[i] = about_exp(x[i]);
      } else {
        for (int i = 0; i < kVectors; i++) e[i] = max(x[i], set(-87.0f));
        exp_in_range(e);
        for (int i = 0; i < kVectors; i++) total = total + mass_of(e[i]);
      }
      for (int i = 0; i < kVectors; i++) {
        enter(race, x[i], e[i], noise[i], source, [&](int lane) { return from + 16 * i + lane; });
      }
    }
  };
  const auto as_it_is = [](f32x16 z) { return z; };
  const auto by_divisor = [&](f32x16 z) { return z / divisor; };
  if (row.weighed) {
    row.divisor == 1.0f ? pass(std::true_type{}, as_it_is) : pass(std::true_type{}, by_divisor);
  } else {
    row.divisor == 1.0f ? pass(std::false_type{}, as_it_is) : pass(std::false_type{}, by_divisor);
    row.total = sum_long(total);
  }
  return race.token;
}

static int32_t draw_listed(Row& row, const NoiseSource& source) {
  Race race;
  i64x16 total = zero_long();
  for_each_vector(row.z, row.n, [&](f32x16 z, int at) {
    const f32x16 x = z - set(row.max), e = exp_below_zero(x);
    total = total + mass_of(e);
    enter(race, x, e, noise_of(source, row.ids + at), source, [&](int lane) { return row.ids[at + lane]; });
  });
  row.total = sum_long(total);
  return race.token;
}

// Draws, and leaves the row's total known.
static int32_t draw(Row& row, const NoiseSource& source, int vocabulary) {
  if (!row.ids) return draw_dense(row, source);
  if (row.n == 1) {
    row.total = int64_t{1} << 40;
    return row.ids[0];
  }
  if (row.n <= vocabulary / kFewOf) return draw_listed(row, source);
  Row dense = spread(row, vocabulary);
  const int32_t token = draw_dense(dense, source);
  row.total = dense.total;
  return token;
}

}  // namespace unspool::UNSPOOL_ISA
