// Python's way to the sampler: arrays are checked here, so that the kernels need not.
#include "sample_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "float_mode.h"
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

using Values = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The arrays of a SamplePlan, in its order.
struct Plan {
  Vector<int32_t> rows, chain_starts, kinds;
  Values values;
  Vector<int64_t> token_starts;
  Vector<int32_t> tokens;
  Vector<float> amounts;
  Vector<uint64_t> keys;
  Vector<int32_t> positions, sample_indices, given;
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

void check_each(bool right, const char* what, double value) {
  if (!right) refuse(std::string(what) + ", not " + std::to_string(value));
}

void check_share(double value, const char* what) {
  check_each(value >= 0 && value <= 1, (std::string(what) + " is from 0 to 1").c_str(), value);
}

void check_ties(double value) {
  check_each(value == 0 || value == 1 || value == 2, "ties are kept by 0, 1 or 2", value);
}

bool is_whole(double value) { return value < 0x1p53 && value == std::floor(value); }

void check_flag(double value, const char* what) { check_each(value == 0 || value == 1, what, value); }

// The ranges of unspool.sampling.rules; values that would be off are for the chain's compiler to leave out.
void check_rule(int32_t kind, const double* v) {
  switch (static_cast<RuleKind>(kind)) {
    case RuleKind::kRepetitionPenalty:
      return check_each(v[0] >= 1e-4 && v[0] <= 1e4, "a repetition penalty is from 0.0001 to 10000", v[0]);
    case RuleKind::kTemperature:
      return check_each(v[0] >= 1e-9 && v[0] <= 1e9, "a temperature is from 1e-9 to 1e9 (for 0, top-k 1)", v[0]);
    case RuleKind::kTopK:
      check_each(v[0] >= 1 && is_whole(v[0]), "top-k is a whole number from 1 to 2^53", v[0]);
      return check_ties(v[1]);
    case RuleKind::kTopP:
      check_share(v[0], "top-p");
      check_ties(v[1]);
      return check_flag(v[2], "whether top-p's boundary is strict is 0 or 1");
    case RuleKind::kDynamicTemperature:
      check_each(v[0] >= 0 && v[0] <= v[1] && v[1] <= 1e9, "a range of temperatures rises from 0 to 1e9", v[0]);
      return check_each(v[2] >= 0.01 && v[2] <= 100, "a dynamic temperature's exponent is from 0.01 to 100", v[2]);
    case RuleKind::kTopNSigma:
      return check_each(v[0] >= 0 && v[0] <= 1e6, "top-n-sigma is from 0 to 1e6", v[0]);
    case RuleKind::kTypical:
      check_share(v[0], "typical-p");
      return check_ties(v[1]);
    case RuleKind::kMinP: return check_share(v[0], "min-p");
    case RuleKind::kEpsilon: return check_share(v[0], "an epsilon cutoff");
    case RuleKind::kEta: return check_share(v[0], "an eta cutoff");
    case RuleKind::kTopA: return check_share(v[0], "top-a");
    case RuleKind::kTailFree: return check_share(v[0], "tail-free's share");
    case RuleKind::kTopH:
      check_share(v[0], "top-H");
      check_each(v[1] >= 0 && is_whole(v[1]), "top-H's cap is a whole number from 0", v[1]);
      return check_flag(v[2], "whether top-H's entropy is summed is 0 or 1");
    case RuleKind::kXtc:
      check_share(v[0], "XTC's probability");
      return check_share(v[1], "XTC's threshold");
    case RuleKind::kMirostat1: return check_each(std::isfinite(v[0]), "mirostat's mu is finite", v[0]);
    case RuleKind::kAdaptiveP: return check_share(v[0], "adaptive-p's aim");
    case RuleKind::kAdd:
    case RuleKind::kBan:
    case RuleKind::kAllow:
    case RuleKind::kPLess:
    case RuleKind::kWitness: return;
  }
  refuse("there is no rule of kind " + std::to_string(kind));
}

// Amounts that are added, and the order of tokens that are allowed.
void check_edits(const Plan& plan) {
  for (size_t i = 0; i < plan.amounts.size(); i++) {
    if (plan.amounts.data()[i] < INFINITY) continue;  // NaN is not
    refuse("amounts[" + std::to_string(i) + "] is " + std::to_string(plan.amounts.data()[i]) +
           ", which is not a number below infinity");
  }
  for (size_t entry = 0; entry < plan.kinds.size(); entry++) {
    if (plan.kinds.data()[entry] != static_cast<int32_t>(RuleKind::kAllow)) continue;
    for (int64_t i = plan.token_starts.data()[entry] + 1; i < plan.token_starts.data()[entry + 1]; i++) {
      if (plan.tokens.data()[i] > plan.tokens.data()[i - 1]) continue;
      refuse("the allowed tokens of entry " + std::to_string(entry) + " do not ascend");
    }
  }
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
  if (n > INT32_MAX / 4) refuse("too many rows");
  check_size(plan.chain_starts, n + 1, "chain_starts");
  if (plan.values.shape(0) != entries || plan.values.shape(1) != kNumValues) {
    refuse("values has the shape [" + std::to_string(plan.values.shape(0)) + ", " +
           std::to_string(plan.values.shape(1)) + "] and needs [" + std::to_string(entries) + ", " +
           std::to_string(kNumValues) + "]");
  }
  check_size(plan.token_starts, entries + 1, "token_starts");
  check_size(plan.amounts, plan.tokens.size(), "amounts");
  check_size(plan.keys, n, "keys");
  check_size(plan.positions, n, "positions");
  check_size(plan.sample_indices, n, "sample_indices");
  check_size(plan.given, n, "given");
  check_starts(plan.chain_starts, entries, "chain_starts");
  check_starts(plan.token_starts, plan.tokens.size(), "token_starts");
  check_range(plan.rows, 0, static_cast<int64_t>(logits.shape(0)) - 1, "rows");
  check_range(plan.tokens, 0, vocabulary - 1, "tokens");
  check_range(plan.positions, 0, INT32_MAX, "positions");
  check_range(plan.sample_indices, 0, INT32_MAX, "sample_indices");
  check_range(plan.given, -1, vocabulary - 1, "given");
  for (size_t i = 0; i < entries; i++) check_rule(plan.kinds.data()[i], plan.values.data() + i * kNumValues);
  check_edits(plan);
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
    const size_t tokens = vocabulary + 64, spans = vocabulary / 8 + 64;
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    memory_ = Memory(aligned(tokens * 4) * 8 + aligned(spans * 4) * 2 + aligned(kSortCounts * 4));
    uint8_t* next = memory_.data();
    const auto take = [&](auto*& array, size_t count) {
      array = reinterpret_cast<std::decay_t<decltype(array)>>(next);
      next += aligned(count * sizeof *array);
    };
    take(arrays_.row, tokens);
    take(arrays_.second_row, tokens);
    take(arrays_.raw_maxima, spans);
    take(arrays_.maxima, spans);
    take(arrays_.ids, tokens);
    take(arrays_.logits, tokens);
    take(arrays_.band_z, tokens);
    take(arrays_.band_e, tokens);
    take(arrays_.counts, kSortCounts);
    take(arrays_.witness_ids, tokens);
    take(arrays_.witness_logits, tokens);
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
template <class F>
void work_together(const SampleTask& task, const Kernels& kernels, Pool& pool, const F& f) {
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
  f(mine, 0, whole);
}

// Several rows: each worker takes one after another.
template <class F>
void work_apart(const SampleTask& task, const Kernels& kernels, Pool& pool, const F& f) {
  std::atomic<int> next{0};
  std::atomic<bool> out_of_memory{false};
  const int n = task.num_rows;
  pool.run([&](int) {
    try {
      const SampleTask mine = with_scratch(task);
      const auto logits_of = [&](int row) { return row < n ? task.logits + task.rows[row] * task.stride : nullptr; };
      for (int row = next++, following = row; row < n; row = following) {
        following = next++;
        RowFacts facts;
        kernels.survey(logits_of(row), task.vocabulary, mine.scratch.raw_maxima, facts);
        if (facts.sound) kernels.weigh(logits_of(row), task.vocabulary, facts.max, logits_of(following), facts);
        f(mine, row, facts);
      }
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  });
  if (out_of_memory) throw std::bad_alloc();
}

// f(task with a scratch, n, facts of its row before any rule) for each planned row n.
template <class F>
void for_each_row(const SampleTask& task, const Kernels& kernels, Pool& pool, const F& f) {
  const FloatMode mode;
  if (task.num_rows == 1) work_together(task, kernels, pool, f);
  if (task.num_rows > 1) work_apart(task, kernels, pool, f);
}

// A task without results. The plan must outlive it.
SampleTask task_of(const Logits& logits, const Plan& plan) {
  SampleTask task{};
  task.logits = logits.data();
  task.stride = logits.stride(0);
  task.vocabulary = static_cast<int>(logits.shape(1));
  task.rows = plan.rows.data();
  task.chain_starts = plan.chain_starts.data();
  task.kinds = plan.kinds.data();
  task.values = plan.values.data();
  task.token_starts = plan.token_starts.data();
  task.entry_tokens = plan.tokens.data();
  task.amounts = plan.amounts.data();
  task.keys = plan.keys.data();
  task.positions = plan.positions.data();
  task.sample_indices = plan.sample_indices.data();
  task.given = plan.given.data();
  task.num_rows = static_cast<int>(plan.rows.size());
  task.num_logprobs = plan.num_logprobs;
  return task;
}

// An array of Python's that owns what `data` points to.
template <class T>
nb::object owned(T* data, std::initializer_list<size_t> shape) {
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

// Zeroed results of one type, of a shape, and the pointer to fill them through.
template <class T>
class Results {
 public:
  explicit Results(std::initializer_list<size_t> shape) {
    size_t size = 1;
    for (size_t extent : shape) size *= extent;
    data_ = new T[size]();
    array_ = owned(data_, shape);
  }

  T* data() const { return data_; }
  const nb::object& array() const { return array_; }

 private:
  T* data_;
  nb::object array_;
};

nb::tuple sample(Pool& pool, const std::string& instruction_set, Logits logits, Vector<int32_t> rows,
                 Vector<int32_t> chain_starts, Vector<int32_t> kinds, Values values, Vector<int64_t> token_starts,
                 Vector<int32_t> tokens, Vector<float> amounts, Vector<uint64_t> keys, Vector<int32_t> positions,
                 Vector<int32_t> sample_indices, Vector<int32_t> given, int num_logprobs) {
  const Plan plan = {rows,   chain_starts, kinds,     values,         token_starts, tokens,
                     amounts, keys,         positions, sample_indices, given,        num_logprobs};
  check(logits, plan);
  const Kernels& kernels_of_set = kernels(instruction_set);
  const size_t n = rows.size(), best = static_cast<size_t>(num_logprobs);
  Results<int32_t> integers({4, n}), top_tokens({2, n, best});
  Results<float> figures({4, n}), top_logprobs({2, 2, n, best});
  SampleTask task = task_of(logits, plan);
  task.tokens = integers.data();
  task.status = integers.data() + n;
  task.ranks = integers.data() + 2 * n;
  task.kept = integers.data() + 3 * n;
  task.logprobs = figures.data();
  task.processed_logprobs = figures.data() + n;
  task.entropies = figures.data() + 2 * n;
  task.surprises = figures.data() + 3 * n;
  task.top_tokens = top_tokens.data();
  task.top_logprobs = top_logprobs.data();
  {
    nb::gil_scoped_release released;
    for_each_row(task, kernels_of_set, pool, kernels_of_set.sample);
  }
  return nb::make_tuple(integers.array(), figures.array(), top_tokens.array(), top_logprobs.array());
}

// What a chain leaves of a row.
struct FoundLaw {
  RowStatus status = RowStatus::kOk;
  size_t count = 0;
  std::unique_ptr<int32_t[]> ids;
  std::unique_ptr<float[]> logits;
};

nb::list laws(Pool& pool, const std::string& instruction_set, Logits logits, Vector<int32_t> rows,
              Vector<int32_t> chain_starts, Vector<int32_t> kinds, Values values, Vector<int64_t> token_starts,
              Vector<int32_t> tokens, Vector<float> amounts, Vector<uint64_t> keys, Vector<int32_t> positions,
              Vector<int32_t> sample_indices, Vector<int32_t> given, int num_logprobs) {
  const Plan plan = {rows,   chain_starts, kinds,     values,         token_starts, tokens,
                     amounts, keys,         positions, sample_indices, given,        num_logprobs};
  check(logits, plan);
  const Kernels& kernels_of_set = kernels(instruction_set);
  std::vector<FoundLaw> found(rows.size());
  {
    nb::gil_scoped_release released;
    const auto find = [&](const SampleTask& task, int n, const RowFacts& facts) {
      FoundLaw& law = found[static_cast<size_t>(n)];
      int count = 0;
      law.status = kernels_of_set.find_law(task, n, facts, count);
      law.count = static_cast<size_t>(count);
      law.ids.reset(new int32_t[law.count]);
      law.logits.reset(new float[law.count]);
      std::copy_n(task.scratch.ids, law.count, law.ids.get());
      std::copy_n(task.scratch.logits, law.count, law.logits.get());
    };
    for_each_row(task_of(logits, plan), kernels_of_set, pool, find);
  }
  nb::list result;
  for (FoundLaw& law : found) {
    result.append(nb::make_tuple(static_cast<int32_t>(law.status), owned(law.ids.release(), {law.count}),
                                 owned(law.logits.release(), {law.count})));
  }
  return result;
}

nb::tuple offers(Pool& pool, const std::string& instruction_set, Logits logits, Vector<int32_t> rows,
                 Vector<int32_t> chain_starts, Vector<int32_t> kinds, Values values, Vector<int64_t> token_starts,
                 Vector<int32_t> tokens, Vector<float> amounts, Vector<uint64_t> keys, Vector<int32_t> positions,
                 Vector<int32_t> sample_indices, Vector<int32_t> given, int num_logprobs, int count, bool perturbed,
                 bool log_rows) {
  const Plan plan = {rows,   chain_starts, kinds,     values,         token_starts, tokens,
                     amounts, keys,         positions, sample_indices, given,        num_logprobs};
  check(logits, plan);
  if (count < 1 || count > kMaxVocabulary) {
    refuse("count is " + std::to_string(count) + ", not in 1.." + std::to_string(kMaxVocabulary));
  }
  const Kernels& kernels_of_set = kernels(instruction_set);
  const size_t n = rows.size(), best = static_cast<size_t>(num_logprobs);
  const size_t most = std::min(static_cast<size_t>(count), logits.shape(1));
  Results<int32_t> integers({4, n}), offered({2, n, most}), top_tokens({2, n, best});
  Results<float> entropies({n}), top_logprobs({2, 2, n, best});
  Results<double> figures({5, n, most});
  SampleTask task = task_of(logits, plan);
  task.tokens = integers.data();
  task.status = integers.data() + n;
  task.kept = integers.data() + 2 * n;
  task.entropies = entropies.data();
  task.top_tokens = top_tokens.data();
  task.top_logprobs = top_logprobs.data();
  const size_t all = n * most;
  const OfferTask into = {static_cast<int>(most),
                          perturbed,
                          log_rows,
                          integers.data() + 3 * n,
                          offered.data(),
                          offered.data() + all,
                          figures.data(),
                          figures.data() + all,
                          figures.data() + 2 * all,
                          figures.data() + 3 * all,
                          figures.data() + 4 * all};
  {
    nb::gil_scoped_release released;
    for_each_row(task, kernels_of_set, pool, [&](const SampleTask& mine, int row, const RowFacts& facts) {
      kernels_of_set.offer(mine, into, row, facts);
    });
  }
  return nb::make_tuple(integers.array(), entropies.array(), offered.array(), figures.array(), top_tokens.array(),
                        top_logprobs.array());
}

template <class Function, class... Extra>
void define(nb::module_& module, const char* name, Function function, const char* what, const Extra&... extra) {
  // No conversions: an array of another type would be cut to fit in silence.
  module.def(name, function, nb::arg("pool"), nb::arg("instruction_set"), nb::arg("logits").noconvert(),
             nb::arg("rows").noconvert(), nb::arg("chain_starts").noconvert(), nb::arg("kinds").noconvert(),
             nb::arg("values").noconvert(), nb::arg("token_starts").noconvert(), nb::arg("tokens").noconvert(),
             nb::arg("amounts").noconvert(), nb::arg("keys").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("sample_indices").noconvert(), nb::arg("given").noconvert(), nb::arg("num_logprobs"), extra..., what);
}

}  // namespace

void bind_sample(nb::module_& module) {
  define(module, "sample", &sample,
         "Run each planned row's chain and draw: the arrays of a SamplePlan in, those of a RowResults out.\n\n"
         "Raises ValueError for a plan that does not fit the logits.");
  define(module, "laws", &laws,
         "Run each planned row's chain: (status, ids, logits) of the candidates that it leaves.\n\n"
         "Raises ValueError for a plan that does not fit the logits.");
  define(module, "offers", &offers,
         "Run each planned row's chain: the best candidates that it leaves, or the first that the noise draws.\n\n"
         "Raises ValueError for a plan that does not fit the logits.",
         nb::arg("count"), nb::arg("perturbed"), nb::arg("log_rows"));
}

}  // namespace unspool
