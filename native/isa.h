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
struct SampleTask;

struct Kernels {
  const char* name;
  // Tokens that share one pass over a panel of weights; activations are packed in tiles of at most this.
  int tile;
  // One worker's share of one step; every worker of the pool calls it.
  void (*forward)(const Model& model, Step& step, Pool& pool, int worker);
  // Row n of a sampling task, from its logits to its results.
  void (*sample)(const SampleTask& task, int n);
  // Reads that many bytes, for a probe of the memory's speed.
  int32_t (*read)(const uint8_t* data, size_t bytes);
};

// By name (portable, avx2, avxvnni, avx512), or the best of this processor for "auto". Throws
// std::invalid_argument where the processor or the build lacks it, saying what there is.
const Kernels& kernels(const std::string& name);

// The names that kernels() takes here, best first.
std::vector<std::string> instruction_sets();

}  // namespace unspool
