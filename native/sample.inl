// One row of logits, from its chain of rules to the token drawn, for one instruction set.
// Included after one of simd's avx512.h, avx2.h, portable.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sample.h"
#include "sample/noise.h"
#include "simd/exp.h"

namespace unspool::UNSPOOL_ISA {

// The candidates that a chain has kept so far: ascending ids and their logits.
struct Candidates {
  int32_t* ids;
  float* z;
  int n;
};

constexpr double kUnit = 0x1p40;

static int64_t mass_of(float z, float max) {
  float lane[16];
  store(lane, exp(set(z - max)));
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(lane[0]) * kUnit));
}

static float maximum(const Candidates& c) {
  float max = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < c.n; i++) max = c.z[i] > max ? c.z[i] : max;
  return max;
}

static int64_t total_mass(const Candidates& c, float max) {
  int64_t total = 0;
  for (int i = 0; i < c.n; i++) total += mass_of(c.z[i], max);
  return total;
}

// Places of the candidates by descending logit, ascending id.
static void order(const Candidates& c, int32_t* places) {
  for (int i = 0; i < c.n; i++) places[i] = i;
  std::sort(places, places + c.n, [&](int32_t a, int32_t b) { return c.z[a] != c.z[b] ? c.z[a] > c.z[b] : a < b; });
}

static void keep_first(Candidates& c, int32_t* places, int count) {
  std::sort(places, places + count, [](int32_t a, int32_t b) { return a < b; });
  for (int i = 0; i < count; i++) {
    c.ids[i] = c.ids[places[i]];
    c.z[i] = c.z[places[i]];
  }
  c.n = count;
}

static void apply(RuleKind kind, double value, Candidates& c, const SampleTask& task, int n) {
  const float max = maximum(c), v = static_cast<float>(value);
  switch (kind) {
    case RuleKind::kRepetitionPenalty:
      for (int i = 0; i < c.n; i++) {
        for (int64_t h = task.history_starts[n]; h < task.history_starts[n + 1]; h++) {
          if (task.history[h] != c.ids[i]) continue;
          c.z[i] = c.z[i] > 0 ? c.z[i] / v : c.z[i] * v;
          break;
        }
      }
      return;
    case RuleKind::kTemperature:
      for (int i = 0; i < c.n; i++) c.z[i] /= v;
      return;
    case RuleKind::kTopK:
      if (value < c.n) {
        order(c, task.scratch.places);
        keep_first(c, task.scratch.places, static_cast<int>(value));
      }
      return;
    case RuleKind::kTopP: {
      if (value >= 1) return;
      const int64_t total = total_mass(c, max);
      const int64_t target = static_cast<int64_t>(std::floor(value * static_cast<double>(total))) - (total >> 24);
      order(c, task.scratch.places);
      int count = 0;
      for (int64_t mass = 0; count == 0 || mass < target; count++) mass += mass_of(c.z[task.scratch.places[count]], max);
      return keep_first(c, task.scratch.places, count);
    }
    case RuleKind::kMinP: {
      const int64_t level = static_cast<int64_t>(std::floor(value * kUnit));
      int kept = 0;
      for (int i = 0; i < c.n; i++) {
        if (mass_of(c.z[i], max) < level - (level >> 21)) continue;
        c.ids[kept] = c.ids[i];
        c.z[kept++] = c.z[i];
      }
      c.n = kept;
      return;
    }
  }
}

static double log_probability(float z, float max, int64_t total) {
  return static_cast<double>(z - max) - natural_log(static_cast<double>(total) * 0x1p-40);
}

// Row n of the task, from its logits to its results.
static void sample(const SampleTask& task, int n) {
  const float* raw = task.logits + task.rows[n] * task.stride;
  const NoiseSource source = {task.keys[n], static_cast<uint32_t>(task.positions[n]),
                              static_cast<uint32_t>(task.sample_indices[n])};
  Candidates c = {task.scratch.ids, task.scratch.logits, 0};
  task.tokens[n] = -1;
  for (int i = 0; i < task.num_logprobs; i++) task.top_tokens[n * task.num_logprobs + i] = -1;
  bool sound = true;
  for (int i = 0; i < task.vocabulary; i++) {
    sound = sound && raw[i] < std::numeric_limits<float>::infinity();
    if (!(raw[i] > -std::numeric_limits<float>::infinity())) continue;
    c.ids[c.n] = i;
    c.z[c.n++] = raw[i];
  }
  task.status[n] = static_cast<int32_t>(!sound ? RowStatus::kNotANumber : c.n ? RowStatus::kOk : RowStatus::kEmpty);
  if (!sound || c.n == 0) return;

  const float raw_max = maximum(c);
  const int64_t raw_total = total_mass(c, raw_max);
  double moment = 0;
  for (int i = 0; i < c.n; i++) {
    moment += std::nearbyint(static_cast<double>(static_cast<float>(mass_of(c.z[i], raw_max)) * (raw_max - c.z[i])));
  }
  for (int e = task.chain_starts[n]; e < task.chain_starts[n + 1]; e++) {
    apply(static_cast<RuleKind>(task.kinds[e]), task.values[e], c, task, n);
  }

  const float max = maximum(c);
  int best = -1;
  double least = 0;
  for (int i = 0; i < c.n; i++) {
    const int64_t mass = mass_of(c.z[i], max);
    if (mass == 0) continue;
    const double ratio = exponential(source, c.ids[i], noise_bits(source, c.ids[i], Purpose::kToken)) /
                         static_cast<double>(mass);
    if (best >= 0 && ratio >= least) continue;
    best = i;
    least = ratio;
  }
  const int32_t token = c.ids[best];
  task.tokens[n] = token;
  task.kept[n] = c.n;
  task.processed_logprobs[n] = static_cast<float>(log_probability(c.z[best], max, total_mass(c, max)));
  task.logprobs[n] = static_cast<float>(log_probability(raw[token], raw_max, raw_total));
  task.entropies[n] = static_cast<float>(natural_log(static_cast<double>(raw_total) * 0x1p-40) +
                                         moment / static_cast<double>(raw_total));
  for (int i = 0; i < task.vocabulary; i++) {
    task.ranks[n] += raw[i] > raw[token] || (raw[i] == raw[token] && i < token);
  }
  int32_t* tops = task.top_tokens + static_cast<int64_t>(n) * task.num_logprobs;
  float* top_logprobs = task.top_logprobs + static_cast<int64_t>(n) * task.num_logprobs;
  for (int m = 0; m < task.num_logprobs && m < task.vocabulary; m++) {
    int next = -1;
    for (int i = 0; i < task.vocabulary; i++) {
      if (m && !(raw[i] < raw[tops[m - 1]] || (raw[i] == raw[tops[m - 1]] && i > tops[m - 1]))) continue;
      if (next < 0 || raw[i] > raw[next]) next = i;
    }
    tops[m] = next;
    top_logprobs[m] = static_cast<float>(log_probability(raw[next], raw_max, raw_total));
  }
}

}  // namespace unspool::UNSPOOL_ISA
