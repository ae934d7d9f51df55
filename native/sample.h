// Sampling: a row of logits, its chain of rules, and the token that the noise draws from what they keep.
#pragma once
#include <cstddef>
#include <cstdint>

namespace unspool {

// Numbers shared with unspool.sampling.plan, which says what each entry's values are.
enum class RuleKind : int32_t {
  kRepetitionPenalty = 1,
  kTemperature = 2,
  kTopK = 3,
  kTopP = 4,
  kMinP = 5,
  kAdd = 6,
  kBan = 7,
  kAllow = 8,
  kDynamicTemperature = 9,
  kTopNSigma = 10,
  kTypical = 11,
  kEpsilon = 12,
  kEta = 13,
  kTopA = 14,
  kTailFree = 15,
  kTopH = 16,
  kPLess = 17,
  kXtc = 18,
  kMirostat1 = 19,
  kAdaptiveP = 20,
  kWitness = 21,
};
enum class Ties : int32_t { kLowestId = 0, kAll = 1, kHighestId = 2 };
enum class RowStatus : int32_t { kOk = 0, kNotANumber = 1, kEmpty = 2 };

constexpr int kNumValues = 3;
constexpr int kMaxLogprobs = 32;
constexpr int kSortCounts = 4096;
// Sums of masses stay below 2^62: each is at most 2^40.
constexpr int kMaxVocabulary = 1 << 22;

// Memory that one worker needs while it samples a row; every array is 64-byte aligned.
struct SampleScratch {
  float* row;             // [vocabulary + 64] logits that a rule has changed
  float* second_row;      // [vocabulary + 64] the same, where a witness still needs `row`
  float* raw_maxima;      // [vocabulary / 8 + 64] of spans of the row as it came
  float* maxima;          // [vocabulary / 8 + 64] of spans of a changed row
  int32_t* ids;           // [vocabulary + 64] a list of candidates, ascending
  float* logits;          // [vocabulary + 64] theirs
  float* band_z;          // [vocabulary + 64] logits under selection
  float* band_e;          // [vocabulary + 64] their exponentials
  int32_t* counts;        // [kSortCounts] for a sort
  int32_t* witness_ids;   // [vocabulary + 64] the list that a witness saw
  float* witness_logits;  // [vocabulary + 64] its logits
};

// What unspool.sampling.plan.SamplePlan and RowResults hold, as pointers; the binding has checked it.
struct SampleTask {
  const float* logits;  // [R, vocabulary], rows `stride` floats apart
  int64_t stride;
  int vocabulary;

  const int32_t* rows;            // [N]
  const int32_t* chain_starts;    // [N + 1]
  const int32_t* kinds;           // [C] RuleKind
  const double* values;           // [C, kNumValues]
  const int64_t* token_starts;    // [C + 1]
  const int32_t* entry_tokens;    // [M]
  const float* amounts;           // [M]
  const uint64_t* keys;           // [N]
  const int32_t* positions;       // [N]
  const int32_t* sample_indices;  // [N]
  const int32_t* given;           // [N]
  int num_rows;                   // N
  int num_logprobs;

  int32_t* tokens;            // [N]
  int32_t* status;            // [N] RowStatus
  int32_t* ranks;             // [N]
  int32_t* kept;              // [N]
  float* logprobs;            // [N]
  float* processed_logprobs;  // [N]
  float* entropies;           // [N]
  float* surprises;           // [N]
  int32_t* top_tokens;        // [2, N, num_logprobs]
  float* top_logprobs;        // [2, 2, N, num_logprobs]

  SampleScratch scratch;  // of the worker that holds this copy of the task
};

// What is wanted of each row's candidates, and unspool.sampling.offers.Offers as pointers, beside those of the task.
struct OfferTask {
  int count;       // M
  bool perturbed;  // the first that the noise draws, not the most probable
  bool log_rows;   // rules see log-probabilities, and scores are what they leave of them

  int32_t* counts;             // [N]
  int32_t* tokens;             // [N, M]
  int32_t* ranks;              // [N, M]
  double* scores;              // [N, M]
  double* logprobs;            // [N, M]
  double* processed_logprobs;  // [N, M]
  double* surprises;           // [N, M]
  double* variables;           // [N, M] exponential, of the noise
};

// What a row is before any rule. Its parts can be looked at and weighed by different workers: largest of largest,
// sums of integers.
struct RowFacts {
  float max = 0;        // of the logits
  bool sound = true;    // neither NaN nor +infinity among them
  int64_t total = 0;    // the sum of masses w = round(2^40 exp(-d)), with d = max - z
  int64_t moment = 0;   // the sum of round(2^40 d exp(-d))
};

// Logits whose largest are kept lane by lane, so that a search for large ones reads an eighth of a row.
constexpr int kSpan = 128;

}  // namespace unspool
