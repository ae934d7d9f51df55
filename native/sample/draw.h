// The draw: argmin E / w over what a chain has kept, the lowest id of tied ones.
#pragma once
// Included after row.h and noise.h.

namespace unspool::UNSPOOL_ISA {

// The candidate that is ahead, and what all of them weigh.
struct Race {
  double least = 0;
  float bound = kInfinity;  // 2^64 times the least, rounded up
  int place = -1;
  i64x16 total = zero_long();
  int kept = 0;
};

// Sixteen candidates enter, of which `z` are logits, -infinity beyond the last; tokens are place i + lane or
// ids of the place. E = -log(1 - v) is at least v, so that E / w cannot be below the least unless v / w is:
// few logarithms are taken. v is taken with 24 bits, rounded down, and w / 2^40 is at most e + 2^-41.
static inline void enter(Race& race, f32x16 z, float max_z, i32x16 noise, int place, const int32_t* ids,
                         const NoiseSource& source) {
  const f32x16 e = exp_below_zero(z - set(max_z));
  race.total = race.total + mass_of(e);
  race.kept += __builtin_popcount(bits(set(-kInfinity) < z));
  const f32x16 v = to_float(shift_right<8>(noise));
  uint32_t left = bits(v < (e + set(0x1p-41f)) * set(race.bound));
  if (!left) return;
  float each[16];
  int32_t random[16];
  store(each, e);
  store_int(random, noise);
  for (; left; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const int64_t mass = mass_of(each[lane]);
    if (mass == 0) continue;
    const int32_t token = ids ? ids[place + lane] : place + lane;
    const double ratio =
        exponential(source, token, static_cast<uint32_t>(random[lane])) / static_cast<double>(mass);
    if (race.place >= 0 && !(ratio < race.least)) continue;
    race.place = place + lane;
    race.least = ratio;
    race.bound = static_cast<float>(ratio * (0x1p64 * (1 + 0x1p-16)));
  }
}

struct Drawn {
  int32_t token;
  float x;        // its logit less the largest
  int64_t total;  // mass of all candidates
  int kept;
};

static Drawn draw(const Row& row, const NoiseSource& source) {
  if (row.n == 1) return {row.ids ? row.ids[0] : 0, 0.0f, int64_t{1} << 40, 1};
  Race race;
  if (row.ids) {
    for_each_vector(row.z, row.n, [&](f32x16 z, int at) {
      enter(race, z, row.max, noise_of(source, row.ids + at), at, row.ids, source);
    });
  } else {
    for (int from = 0; from < row.n; from += 64) {
      i32x16 noise[4];
      noise_run(source, from, noise);
      for_each_vector(row.z + from, row.n - from < 64 ? row.n - from : 64, [&](f32x16 z, int at) {
        enter(race, z, row.max, noise[at / 16], from + at, nullptr, source);
      });
    }
  }
  const int32_t token = row.ids ? row.ids[race.place] : race.place;
  return {token, row.z[race.place] - row.max, sum_long(race.total), race.kept};
}

}  // namespace unspool::UNSPOOL_ISA
