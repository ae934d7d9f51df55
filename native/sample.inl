// One row of logits, from its chain of rules to the token drawn, for one instruction set.
// Included after one of simd's avx512.h, avx2.h, portable.h. The law is unspool.sampling's, whose sums of
// integer masses do not depend on order: every instruction set and NumPy keep and draw the same tokens.
#include "sample.h"
#include "sample/noise.h"
#include "sample/row.h"
#include "sample/cut.h"
#include "sample/rules.h"
#include "sample/draw.h"

namespace unspool::UNSPOOL_ISA {

static inline double log_of_total(int64_t total) { return natural_log(static_cast<double>(total) * 0x1p-40); }

// How many logits of a row come before a token's: larger ones, and equal ones of lower ids.
static int rank_of(const Row& raw, int32_t token) {
  const f32x16 level = set(raw.z[token]);
  int rank = 0;
  for (int from = 0; from < raw.n; from += kSpan) {
    if (!any(load(raw.maxima + from / 8) >= level)) continue;
    for_each_vector(raw.z + from, raw.n - from < kSpan ? raw.n - from : kSpan, [&](f32x16 v, int at) {
      const int before = token - (from + at);  // lanes of lower ids
      const mask16 lower = first_lanes(before < 0 ? 0 : before < 16 ? before : 16);
      rank += __builtin_popcount(bits(level < v)) + __builtin_popcount(bits((v == level) & lower));
    });
  }
  return rank;
}

// The m most probable tokens of a raw row, best first.
static void report_best(const SampleTask& task, int n, Row raw, int64_t total) {
  const int64_t m = task.num_logprobs, first = n * m;
  if (m == 0) return;
  if (m < raw.n) {
    keep_top_k(raw, static_cast<double>(m), task.scratch);
  } else {
    list_from(raw, kLowest, task.scratch);
  }
  int32_t* tokens = task.top_tokens + first;
  float* logits = task.top_logprobs + first;
  int sorted = 0;
  for (int i = 0; i < raw.n; i++) {  // into its place among those before; ids ascend, so ties stay in order
    int at = sorted++;
    for (; at > 0 && logits[at - 1] < raw.z[i]; at--) {
      tokens[at] = tokens[at - 1];
      logits[at] = logits[at - 1];
    }
    tokens[at] = raw.ids[i];
    logits[at] = raw.z[i];
  }
  for (int i = 0; i < m; i++) {
    if (i >= sorted) tokens[i] = -1;
    const double x = i < sorted ? logits[i] - raw.max : -kInfinity;
    logits[i] = static_cast<float>(x - log_of_total(total));
  }
}

static void report_fault(const SampleTask& task, int n, RowStatus status) {
  task.status[n] = static_cast<int32_t>(status);
  task.tokens[n] = -1;
  for (int64_t i = 0; i < task.num_logprobs; i++) {
    task.top_tokens[n * int64_t{task.num_logprobs} + i] = -1;
    task.top_logprobs[n * int64_t{task.num_logprobs} + i] = 0.0f;
  }
}

// Row n of the task, from its logits to its results, which come in zeroed. What the row is before any rule is
// known, the maxima of its spans in the task's scratch.
static void sample(const SampleTask& task, int n, const RowFacts& facts) {
  const SampleScratch& scratch = task.scratch;
  const float* logits = task.logits + task.rows[n] * task.stride;
  if (!facts.sound) return report_fault(task, n, RowStatus::kNotANumber);
  if (facts.max == -kInfinity) return report_fault(task, n, RowStatus::kEmpty);
  const Row raw = {logits, nullptr, task.vocabulary, facts.max, scratch.raw_maxima, 1.0f, facts.total};
  report_best(task, n, raw, facts.total);

  Row row = raw;
  const int64_t first = task.history_starts[n];
  const History history = {task.history + first, task.history_starts[n + 1] - first};
  for (int i = task.chain_starts[n]; i < task.chain_starts[n + 1]; i++) {
    if (apply(static_cast<RuleKind>(task.kinds[i]), task.values[i], row, history, scratch)) continue;
    return report_fault(task, n, RowStatus::kNotANumber);
  }
  settle(row, scratch);
  const NoiseSource source = {task.keys[n], static_cast<uint32_t>(task.positions[n]),
                              static_cast<uint32_t>(task.sample_indices[n])};
  const Drawn drawn = draw(row, source);

  const double log_total = log_of_total(facts.total);
  const float x = logits[drawn.token] - raw.max;
  task.status[n] = static_cast<int32_t>(RowStatus::kOk);
  task.tokens[n] = drawn.token;
  task.kept[n] = drawn.kept;
  task.processed_logprobs[n] = static_cast<float>(drawn.x - log_of_total(drawn.total));
  task.logprobs[n] = static_cast<float>(x - log_total);
  task.ranks[n] = rank_of(raw, drawn.token);
  task.entropies[n] =
      static_cast<float>(log_total + static_cast<double>(facts.moment) / static_cast<double>(facts.total));
}

}  // namespace unspool::UNSPOOL_ISA
