// One row of logits, from its chain of rules to the token drawn, for one instruction set.
// Included after one of simd's avx512.h, avx2.h, portable.h. The law is unspool.sampling's, whose sums of
// integer masses do not depend on order: every instruction set and NumPy keep and draw the same tokens.
#include <type_traits>

#include "sample.h"
#include "sample/noise.h"
#include "sample/row.h"
#include "sample/cut.h"
#include "sample/edit.h"
#include "sample/top.h"
#include "sample/nucleus.h"
#include "sample/sort.h"
#include "sample/ranked.h"
#include "sample/rules.h"
#include "sample/draw.h"
#include "sample/report.h"

namespace unspool::UNSPOOL_ISA {

static Row raw_row(const SampleTask& task, int n, const RowFacts& facts) {
  const float* logits = task.logits + task.rows[n] * task.stride;
  return {logits, nullptr,     task.vocabulary, facts.max,        task.scratch.raw_maxima,
          1.0f,   true,        facts.total,     facts.moment,     task.scratch.row};
}

static NoiseSource noise_source(const SampleTask& task, int n) {
  return {task.keys[n], static_cast<uint32_t>(task.positions[n]), static_cast<uint32_t>(task.sample_indices[n])};
}

// Whether there is anything to sample from in the row as it came.
static RowStatus status_of(const RowFacts& facts) {
  if (!facts.sound) return RowStatus::kNotANumber;
  return facts.max == -kInfinity ? RowStatus::kEmpty : RowStatus::kOk;
}

// Runs the chain of planned row n, as far as there is a law.
static RowStatus run_chain(const SampleTask& task, int n, Row& row, Witness& seen) {
  int last_witness = -1;
  for (int i = task.chain_starts[n]; i < task.chain_starts[n + 1]; i++) {
    if (task.kinds[i] == static_cast<int32_t>(RuleKind::kWitness)) last_witness = i;
  }
  for (int i = task.chain_starts[n]; i < task.chain_starts[n + 1]; i++) {
    const RuleKind kind = static_cast<RuleKind>(task.kinds[i]);
    if (kind == RuleKind::kWitness && i != last_witness) continue;
    const int64_t first = task.token_starts[i];
    const Edits edits = {task.entry_tokens + first, task.amounts + first, task.token_starts[i + 1] - first};
    const Entry entry = {kind, task.values + int64_t{i} * kNumValues, edits, noise_source(task, n), task.vocabulary};
    transform(row, entry, seen, task.scratch);
    const RowStatus status = status_of(row, kind);
    if (status != RowStatus::kOk) return status;
  }
  return RowStatus::kOk;
}

// Row n of the task, from its logits to its results, which come in zeroed. What the row is before any rule is
// known, the maxima of its spans in the task's scratch.
static void sample(const SampleTask& task, int n, const RowFacts& facts) {
  const SampleScratch& scratch = task.scratch;
  RowStatus status = status_of(facts);
  if (status != RowStatus::kOk) return report_fault(task, n, status);
  const Row raw = raw_row(task, n, facts);
  const int m = task.num_logprobs;
  const int64_t N = task.num_rows;
  int32_t* raw_best = task.top_tokens + n * int64_t{m};
  int32_t* law_best = raw_best + N * m;
  if (m > 0) {
    Row best = raw;
    best_of(best, m, raw_best, scratch);
  }

  Row row = raw;
  Witness seen;
  status = run_chain(task, n, row, seen);
  if (status != RowStatus::kOk) return report_fault(task, n, status);
  int32_t token = task.given[n];
  if (token < 0) {
    token = draw(row, noise_source(task, n), task.vocabulary);
  } else {
    weigh(row);
  }

  task.status[n] = static_cast<int32_t>(RowStatus::kOk);
  task.tokens[n] = token;
  task.kept[n] = count_candidates(row);
  task.processed_logprobs[n] = static_cast<float>(log_probability(row, token));
  task.logprobs[n] = static_cast<float>(log_probability(raw, token));
  task.ranks[n] = rank_of(raw, token);
  task.entropies[n] = static_cast<float>(log_of_total(facts.total) +
                                         static_cast<double>(facts.moment) / static_cast<double>(facts.total));
  if (seen.there) task.surprises[n] = static_cast<float>(-log_probability(seen.row, token));
  if (m == 0) return;
  float* of_best = task.top_logprobs + n * int64_t{m};  // [2, 2, N, m]
  log_probabilities_of(raw, m, raw_best, of_best);
  log_probabilities_of(row, m, raw_best, of_best + N * m);
  best_of(row, m, law_best, scratch);
  log_probabilities_of(raw, m, law_best, of_best + 2 * N * m);
  log_probabilities_of(row, m, law_best, of_best + 3 * N * m);
}

// The candidates that planned row n's chain leaves, ids and logits in the task's scratch; returns how many.
static RowStatus find_law(const SampleTask& task, int n, const RowFacts& facts, int& count) {
  count = 0;
  RowStatus status = status_of(facts);
  if (status != RowStatus::kOk) return status;
  Row row = raw_row(task, n, facts);
  Witness seen;
  status = run_chain(task, n, row, seen);
  if (status != RowStatus::kOk) return status;
  list_from(row, kLowest, task.scratch);
  count = row.n;
  return status;
}

}  // namespace unspool::UNSPOOL_ISA

#include "sample/offers.h"
