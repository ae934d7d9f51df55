// Python's way to the sampler: arrays are checked here, so that the kernels need not.
#include "sample_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "isa.h"
#include "memory.h"
#include "sample.h"
#include "threads.h"

namespace nb = nanobind;

namespace unspool {
namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

// The arrays of a SamplePlan, in its order.
struct Plan {
  Vector<int32_t> rows, chain_starts, kinds;
  Vector<double> values;
  Vector<int64_t> history_starts;
  Vector<int32_t> history;
  Vector<uint64_t> keys;
  Vector<int32_t> positions, sample_indices;
  int num_logprobs;
};

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("sample: " + what); }

template <class T>
void check_size(const Vector<T>& array, size_t size, const char* name) {
  if (array.size() == size) return;
  refuse(std::string(name) + " has " + std::to_string(array.size()) + " elements and needs " + std::to_string(size));
}

template <class T>
void check_range(const Vector<T>& array, int64_t lowest, int64_t highest, const char* name) {
  for (size_t i = 0; i < array.size(); i++) {
    if (array.data()[i] >= lowest && array.data()[i] <= highest) continue;
    refuse(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(array.data()[i]) + ", not in " +
           std::to_string(lowest) + ".." + std::to_string(highest));
  }
}

// Starts of consecutive parts of `size` elements: from 0, never falling, to the end.
template <class T>
void check_starts(const Vector<T>& starts, size_t size, const char* name) {
  const T* p = starts.data();
  bool right = p[0] == 0 && p[starts.size() - 1] == static_cast<T>(size);
  for (size_t i = 1; i < starts.size(); i++) right = right && p[i] >= p[i - 1];
  if (!right) refuse(std::string(name) + " must rise from 0 to " + std::to_string(size));
}

// The ranges of unspool.sampling.rules; values that would be off are for the chain's compiler to leave out.
void check_rule(int32_t kind, double value) {
  const auto require = [&](bool right, const char* what) {
    if (!right) refuse(std::string(what) + ", not " + std::to_string(value));
  };
  switch (static_cast<RuleKind>(kind)) {
    case RuleKind::kRepetitionPenalty:
      return require(value >= 1e-4 && value <= 1e4, "a repetition penalty is from 0.0001 to 10000");
    case RuleKind::kTemperature:
      return require(value >= 1e-9 && value <= 1e9, "a temperature is from 1e-9 to 1e9 (for 0, top-k 1)");
    case RuleKind::kTopK:
      return require(value >= 1 && value == std::floor(value), "top-k is a whole number from 1");
    case RuleKind::kTopP:
      return require(value >= 0 && value <= 1, "top-p is from 0 to 1");
    case RuleKind::kMinP:
      return require(value >= 0 && value <= 1, "min-p is from 0 to 1");
  }
  refuse("there is no rule of kind " + std::to_string(kind));
}

void check(const Logits& logits, const Plan& plan) {
  const size_t n = plan.rows.size(), entries = plan.kinds.size();
  const int64_t vocabulary = static_cast<int64_t>(logits.shape(1));
  if (vocabulary < 1 || vocabulary > kMaxVocabulary) {
    refuse("a vocabulary is from 1 to " + std::to_string(kMaxVocabulary) + " tokens, not " +
           std::to_string(vocabulary));
  }
  if (vocabulary > 1 && logits.stride(1) != 1) refuse("the logits of one row must be contiguous");
  if (plan.num_logprobs < 0 || plan.num_logprobs > kMaxLogprobs) {
    refuse("num_logprobs is " + std::to_string(plan.num_logprobs) + ", not in 0.." + std::to_string(kMaxLogprobs));
  }
  check_size(plan.chain_starts, n + 1, "chain_starts");
  check_size(plan.values, entries, "values");
  check_size(plan.history_starts, n + 1, "history_starts");
  check_size(plan.keys, n, "keys");
  check_size(plan.positions, n, "positions");
  check_size(plan.sample_indices, n, "sample_indices");
  check_starts(plan.chain_starts, entries, "chain_starts");
  check_starts(plan.history_starts, plan.history.size(), "history_starts");
  check_range(plan.rows, 0, static_cast<int64_t>(logits.shape(0)) - 1, "rows");
  check_range(plan.history, 0, vocabulary - 1, "history");
  check_range(plan.positions, 0, INT32_MAX, "positions");
  check_range(plan.sample_indices, 0, INT32_MAX, "sample_indices");
  for (size_t i = 0; i < entries; i++) check_rule(plan.kinds.data()[i], plan.values.data()[i]);
}

// One worker's scratch, kept from call to call: fresh pages cost more than sampling a row does.
class WorkerScratch {
 public:
  // Throws std::bad_alloc.
  const SampleScratch& of(int vocabulary) {
    if (vocabulary > vocabulary_) grow(static_cast<size_t>(vocabulary));
    return arrays_;
  }

 private:
  void grow(size_t vocabulary) {
    const size_t tokens = vocabulary + 64, spans = vocabulary / 8 + 64, words = vocabulary / 64 + 8;
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    memory_ = Memory(aligned(tokens * 4) * 5 + aligned(spans * 4) * 2 + aligned(words * 8));  // zeroed
    uint8_t* next = memory_.data();
    const auto take = [&](auto*& array, size_t count) {
      array = reinterpret_cast<std::decay_t<decltype(array)>>(next);
      next += aligned(count * sizeof *array);
    };
    take(arrays_.row, tokens);
    take(arrays_.raw_maxima, spans);
    take(arrays_.maxima, spans);
    take(arrays_.ids, tokens);
    take(arrays_.logits, tokens);
    take(arrays_.band_z, tokens);
    take(arrays_.band_e, tokens);
    take(arrays_.seen, words);
    vocabulary_ = static_cast<int>(vocabulary);
  }

  Memory memory_;
  SampleScratch arrays_{};
  int vocabulary_ = 0;
};

// The task with the calling thread's scratch, which stays from call to call. Throws std::bad_alloc.
SampleTask with_scratch(const SampleTask& task) {
  thread_local WorkerScratch scratch;
  SampleTask mine = task;
  mine.scratch = scratch.of(task.vocabulary);
  return mine;
}

// One row: each worker looks at a part and weighs it, where a step's head most likely left that part in its
// own cache; the rest is little.
void sample_together(const SampleTask& task, const Kernels& kernels, Pool& pool) {
  const SampleTask mine = with_scratch(task);
  const float* logits = task.logits + task.rows[0] * task.stride;
  const int64_t spans = (task.vocabulary + kSpan - 1) / kSpan;
  std::vector<RowFacts> parts(pool.size());
  pool.run([&](int worker) {
    const int first = static_cast<int>(spans * worker / pool.size()) * kSpan;
    const int end = std::min(task.vocabulary, static_cast<int>(spans * (worker + 1) / pool.size()) * kSpan);
    kernels.survey(logits + first, end - first, mine.scratch.raw_maxima + first / 8, parts[worker]);
    pool.barrier(worker);
    float max = parts[0].max;
    for (const RowFacts& part : parts) max = std::max(max, part.max);
    kernels.weigh(logits + first, end - first, max, nullptr, parts[worker]);
  });
  RowFacts whole = parts[0];
  for (size_t i = 1; i < parts.size(); i++) {
    whole.max = std::max(whole.max, parts[i].max);
    whole.sound &= parts[i].sound;
    whole.total += parts[i].total;
    whole.moment += parts[i].moment;
  }
  kernels.sample(mine, 0, whole);
}

// Several rows: each worker takes one after another.
void sample_apart(const SampleTask& task, int n, const Kernels& kernels, Pool& pool) {
  std::atomic<int> next{0};
  std::atomic<bool> out_of_memory{false};
  pool.run([&](int) {
    try {
      const SampleTask mine = with_scratch(task);
      const auto logits_of = [&](int row) { return row < n ? task.logits + task.rows[row] * task.stride : nullptr; };
      for (int row = next++, following = row; row < n; row = following) {
        following = next++;
        RowFacts facts;
        kernels.survey(logits_of(row), task.vocabulary, mine.scratch.raw_maxima, facts);
        if (facts.sound) kernels.weigh(logits_of(row), task.vocabulary, facts.max, logits_of(following), facts);
        kernels.sample(mine, row, facts);
      }
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  });
  if (out_of_memory) throw std::bad_alloc();
}

// Zeroed rows of one array, and the pointers to fill them through.
template <class T>
class Results {
 public:
  Results(size_t rows, size_t columns) : columns_(columns), data_(new T[rows * columns]()) {
    nb::capsule owner(data_, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    array_ = nb::cast(nb::ndarray<nb::numpy, T>(data_, {rows, columns}, owner));
  }

  T* data(size_t row = 0) const { return data_ + columns_ * row; }
  const nb::object& array() const { return array_; }

 private:
  size_t columns_;
  T* data_;
  nb::object array_;
};

nb::tuple sample(Pool& pool, const std::string& instruction_set, Logits logits, Vector<int32_t> rows,
                 Vector<int32_t> chain_starts, Vector<int32_t> kinds, Vector<double> values,
                 Vector<int64_t> history_starts, Vector<int32_t> history, Vector<uint64_t> keys,
                 Vector<int32_t> positions, Vector<int32_t> sample_indices, int num_logprobs) {
  const Plan plan = {rows, chain_starts, kinds, values, history_starts, history, keys, positions, sample_indices,
                     num_logprobs};
  check(logits, plan);
  const Kernels& kernels_of_set = kernels(instruction_set);
  const size_t n = rows.size(), best = static_cast<size_t>(num_logprobs);
  Results<int32_t> integers(4, n), top_tokens(n, best);
  Results<float> figures(3, n), top_logprobs(n, best);

  SampleTask task{};
  task.logits = logits.data();
  task.stride = logits.stride(0);
  task.vocabulary = static_cast<int>(logits.shape(1));
  task.rows = rows.data();
  task.chain_starts = chain_starts.data();
  task.kinds = kinds.data();
  task.values = values.data();
  task.history_starts = history_starts.data();
  task.history = history.data();
  task.keys = keys.data();
  task.positions = positions.data();
  task.sample_indices = sample_indices.data();
  task.num_logprobs = num_logprobs;
  task.tokens = integers.data(0);
  task.status = integers.data(1);
  task.ranks = integers.data(2);
  task.kept = integers.data(3);
  task.logprobs = figures.data(0);
  task.processed_logprobs = figures.data(1);
  task.entropies = figures.data(2);
  task.top_tokens = top_tokens.data();
  task.top_logprobs = top_logprobs.data();
  {
    nb::gil_scoped_release released;
    if (n == 1) sample_together(task, kernels_of_set, pool);
    if (n > 1) sample_apart(task, static_cast<int>(n), kernels_of_set, pool);
  }
  return nb::make_tuple(integers.array(), figures.array(), top_tokens.array(), top_logprobs.array());
}

}  // namespace

void bind_sample(nb::module_& module) {
  // No conversions: an array of another type would be cut to fit in silence.
  module.def("sample", &sample, nb::arg("pool"), nb::arg("instruction_set"), nb::arg("logits").noconvert(),
             nb::arg("rows").noconvert(), nb::arg("chain_starts").noconvert(), nb::arg("kinds").noconvert(),
             nb::arg("values").noconvert(), nb::arg("history_starts").noconvert(), nb::arg("history").noconvert(),
             nb::arg("keys").noconvert(), nb::arg("positions").noconvert(), nb::arg("sample_indices").noconvert(),
             nb::arg("num_logprobs"),
             "Run each planned row's chain and draw: the arrays of a SamplePlan in, those of a RowResults out.\n\n"
             "Raises ValueError for a plan that does not fit the logits.");
}

}  // namespace unspool
