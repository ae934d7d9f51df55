// The best candidates that a chain leaves of a row, or the first that the noise draws, without replacement.
#pragma once
// Included after report.h, draw.h and top.h.
#include <algorithm>
#include <utility>
#include <vector>

namespace unspool::UNSPOOL_ISA {

// Makes a row of the logarithms of its probabilities: z - max z, less log(W / 2^40) as a float.
static void take_logarithms(Row& row, const SampleScratch& scratch) {
  weigh(row);
  const f32x16 top = set(row.max), of_total = set(static_cast<float>(log_of_total(row.total)));
  change_all(row, scratch, [&](f32x16 z, int) { return (z - top) - of_total; });
}

// The list that is left has these places first, in their order: of the largest logits, ties by id.
static std::vector<int> descending_places(const Row& list) {
  std::vector<int> places(static_cast<size_t>(list.n));
  for (int i = 0; i < list.n; i++) places[static_cast<size_t>(i)] = i;
  std::stable_sort(places.begin(), places.end(), [&](int a, int b) { return list.z[a] > list.z[b]; });
  return places;
}

// A candidate in the exponential race: E / w, then the id; E itself beside them.
struct Runner {
  double ratio;
  int32_t token;
  double variable;
  bool operator<(const Runner& other) const {
    return ratio != other.ratio ? ratio < other.ratio : token < other.token;
  }
};

// The first `count` of a list's candidates to arrive: `draw` draws the first of them.
static std::vector<Runner> first_of_race(const Row& list, const NoiseSource& source, int count) {
  std::vector<Runner> heap;  // the last of them on top
  heap.reserve(static_cast<size_t>(count) + 1);
  float bound = kInfinity;
  for_each_vector(list.z, list.n, [&](f32x16 z, int at) {
    const f32x16 x = z - set(list.max);
    const i32x16 noise = noise_of(source, list.ids + at);
    // see draw.h: E / w is at least v / w
    uint32_t left = bits(to_float(shift_right<8>(noise)) < (exp_below_zero(x) + set(0x1p-41f)) * set(bound));
    if (at + 16 > list.n) left &= (1u << (list.n - at)) - 1;
    float each[16];
    int32_t random[16];
    store(each, exp_below_zero(x));
    store_int(random, noise);
    for (; left; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      const int64_t mass = mass_of(each[lane]);
      if (mass == 0) continue;
      const int32_t token = list.ids[at + lane];
      const double variable = exponential(source, token, static_cast<uint32_t>(random[lane]));
      const Runner runner = {variable / static_cast<double>(mass), token, variable};
      const bool full = static_cast<int>(heap.size()) == count;
      if (full && !(runner < heap.front())) continue;
      if (full) {
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
      }
      heap.push_back(runner);
      std::push_heap(heap.begin(), heap.end());
      if (static_cast<int>(heap.size()) == count) {
        bound = static_cast<float>(heap.front().ratio * (0x1p64 * (1 + 0x1p-13)));
      }
    }
  });
  std::sort_heap(heap.begin(), heap.end());
  return heap;
}

// Fills row n's offers with these candidates of a law that is a list with the total of all.
static void put_offers(const OfferTask& into, int n, const std::vector<Runner>& race, const Row& law, const Row& raw,
                       const Witness& seen) {
  into.counts[n] = static_cast<int32_t>(race.size());
  int64_t at = n * int64_t{into.count};
  for (const Runner& runner : race) {
    const int32_t token = runner.token;
    into.tokens[at] = token;
    into.ranks[at] = rank_of(raw, token);
    into.logprobs[at] = log_probability(raw, token);
    into.processed_logprobs[at] = log_probability(law, token);
    into.scores[at] = into.log_rows ? static_cast<double>(logit_of(law, token)) : into.processed_logprobs[at];
    into.variables[at] = runner.variable;
    if (seen.there) into.surprises[at] = -log_probability(seen.row, token);
    at++;
  }
}

// Row n of the task to its offers, which come in zeroed: see unspool.sampling.offers.
static void offer(const SampleTask& task, const OfferTask& into, int n, const RowFacts& facts) {
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
  if (into.log_rows) take_logarithms(row, scratch);
  Witness seen;
  status = run_chain(task, n, row, seen);
  if (status != RowStatus::kOk) return report_fault(task, n, status);
  weigh(row);
  task.status[n] = static_cast<int32_t>(RowStatus::kOk);
  task.kept[n] = count_candidates(row);
  task.entropies[n] = static_cast<float>(log_of_total(facts.total) +
                                         static_cast<double>(facts.moment) / static_cast<double>(facts.total));
  float* of_best = task.top_logprobs + n * int64_t{m};  // [2, 2, N, m]
  if (m > 0) {
    log_probabilities_of(raw, m, raw_best, of_best);
    log_probabilities_of(row, m, raw_best, of_best + N * m);
  }

  const int64_t total = row.total;
  if (into.perturbed) {
    list_from(row, kLowest, scratch);
    row.total = total;
    put_offers(into, n, first_of_race(row, noise_source(task, n), into.count), row, raw, seen);
  }
  const int most = into.perturbed ? m : std::max(m, into.count);
  if (most > 0 && most < row.n) {
    keep_top_k(row, most, Ties::kLowestId, scratch);
  } else {
    list_from(row, kLowest, scratch);
  }
  row.total = total;  // of all
  const std::vector<int> places = most > 0 ? descending_places(row) : std::vector<int>();
  if (m > 0) {
    for (int i = 0; i < m; i++) law_best[i] = i < static_cast<int>(places.size()) ? row.ids[places[i]] : -1;
    log_probabilities_of(raw, m, law_best, of_best + 2 * N * m);
    log_probabilities_of(row, m, law_best, of_best + 3 * N * m);
  }
  if (into.perturbed) return;
  std::vector<Runner> best;
  for (int i = 0; i < into.count && i < static_cast<int>(places.size()); i++) {
    best.push_back({0.0, row.ids[places[i]], 0.0});
  }
  put_offers(into, n, best, row, raw, seen);
}

}  // namespace unspool::UNSPOOL_ISA
