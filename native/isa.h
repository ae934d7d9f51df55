// The kernels of one instruction set, chosen at run time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unspool {

class Pool;
struct Model;
struct Step;
struct RowFacts;
struct SampleTask;
struct OfferTask;
enum class RowStatus : int32_t;

struct Kernels {
  const char* name;
  // Tokens that share one pass over a panel of weights; activations are packed in tiles of at most this.
  int tile;
  // One worker's share of one step; every worker of the pool calls it.
  void (*forward)(const Model& model, Step& step, Pool& pool, int worker);
  // What is to know of n of a row's logits before any rule: the largest, those of each span of them (to maxima,
  // [ceil(n / kSpan)][16]) and whether they are numbers; then, given the whole row's largest, what they weigh; the next
  // row, if there is one, is fetched meanwhile.
  void (*survey)(const float* logits, int n, float* maxima, RowFacts& facts);
  void (*weigh)(const float* logits, int n, float max, const float* next, RowFacts& facts);
  // Row n of a sampling task, from what is known of it to its results.
  void (*sample)(const SampleTask& task, int n, const RowFacts& facts);
  // Or to the candidates that its chain leaves, how many of them to `count`, in the task's scratch.
  RowStatus (*find_law)(const SampleTask& task, int n, const RowFacts& facts, int& count);
  // Or to the best of them, or the first that the noise draws.
  void (*offer)(const SampleTask& task, const OfferTask& into, int n, const RowFacts& facts);
  // Reads that many bytes, for a probe of the memory's speed.
  int32_t (*read)(const uint8_t* data, size_t bytes);
};

// By name (portable, avx2, avxvnni, avx512), or the best of this processor for "auto". Throws
// std::invalid_argument where the processor or the build lacks it, saying what there is.
const Kernels& kernels(const std::string& name);

// The names that kernels() takes here, best first.
std::vector<std::string> instruction_sets();

}  // namespace unspool
