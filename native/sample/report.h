// The figures of a row's token and of its most probable ones.
#pragma once
// Included after top.h.

namespace unspool::UNSPOOL_ISA {

static inline double log_of_total(int64_t total) { return natural_log(static_cast<double>(total) * 0x1p-40); }

// log p of a token under a weighed law; -infinity where it is no candidate.
static double log_probability(const Row& law, int32_t token) {
  const float x = logit_of(law, token) - law.top();
  return static_cast<double>(x) - log_of_total(law.total);
}

// How many logits of a row come before a token's: larger ones, and equal ones of lower ids. All candidates where
// it is banned.
static int rank_of(const Row& raw, int32_t token) {
  if (raw.z[token] == -kInfinity) return count_candidates(raw);
  const f32x16 level = set(raw.z[token]);
  int rank = 0;
  for_each_from(raw, raw.z[token], [&](f32x16 v, int at) {
    const int before = token - at;  // lanes of lower ids
    const mask16 lower = first_lanes(before < 0 ? 0 : before < 16 ? before : 16);
    rank += count_of(level < v) + count_of((v == level) & lower);
  });
  return rank;
}

// The m most probable candidates of a row, best first, -1 beyond them. The row comes to be a list of these alone,
// with the total of all.
static void best_of(Row& row, int m, int32_t* tokens, const SampleScratch& scratch) {
  if (m < row.n) {
    keep_top_k(row, m, Ties::kLowestId, scratch);
  } else {
    list_from(row, kLowest, scratch);
  }
  float logits[kMaxLogprobs];
  int sorted = 0;
  for (int i = 0; i < row.n; i++) {  // into its place among those before; ids ascend, so ties stay in order
    int at = sorted++;
    for (; at > 0 && logits[at - 1] < row.z[i]; at--) {
      tokens[at] = tokens[at - 1];
      logits[at] = logits[at - 1];
    }
    tokens[at] = row.ids[i];
    logits[at] = row.z[i];
  }
  for (int i = sorted; i < m; i++) tokens[i] = -1;
}

static void log_probabilities_of(const Row& law, int m, const int32_t* tokens, float* log_probabilities) {
  for (int i = 0; i < m; i++) {
    log_probabilities[i] = tokens[i] < 0 ? -kInfinity : static_cast<float>(log_probability(law, tokens[i]));
  }
}

static void report_fault(const SampleTask& task, int n, RowStatus status) {
  task.status[n] = static_cast<int32_t>(status);
  task.tokens[n] = -1;
  const int64_t m = task.num_logprobs;
  for (int64_t list : {n, task.num_rows + n}) {
    for (int64_t i = 0; i < m; i++) task.top_tokens[list * m + i] = -1;
  }
  for (int64_t list = n; list < 4 * int64_t{task.num_rows}; list += task.num_rows) {
    for (int64_t i = 0; i < m; i++) task.top_logprobs[list * m + i] = 0.0f;
  }
}

}  // namespace unspool::UNSPOOL_ISA
