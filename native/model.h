// A decoder-only model, ready to compute: packed weights, rotary table and cache.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cache.h"
#include "isa.h"
#include "memory.h"
#include "quant/pack.h"
#include "rotary.h"
#include "threads.h"

namespace unspool {

constexpr int kMaxHeadDim = 512;
constexpr int kMaxHeads = 1 << 16;
constexpr int kMaxBlocks = (1 << 27) - 1;  // slots are numbered by int32

struct LayerSpec {
  int window = 0;  // a token attends to that many of its last positions, its own included; 0: to all
};

struct Spec {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rope_dim = 0;
  double rope_theta = 0;
  float norm_epsilon = 0;
  float attention_scale = 0;    // queries are multiplied by it
  float attention_softcap = 0;  // scores become cap * tanh(score / cap); 0: off
  std::vector<LayerSpec> layers;  // [num_layers], or none: all as by default

  int window(int layer) const { return layers.empty() ? 0 : layers[layer].window; }
  int widest_window() const;  // of any layer; 0 where one has none
  int query_size() const { return num_heads * head_dim; }
  int group_heads() const { return num_heads / num_kv_heads; }  // query heads that share a kv head
};

struct Layer {
  std::vector<float> attention_norm;
  Matrix query, key, value, output;
  std::vector<float> feed_forward_norm;
  Matrix gate, up, down;
};

struct Model {
  Spec spec;
  const Kernels* kernels;
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  Matrix head;
  bool tied = true;     // the embedding table is the packed head
  RawTensor embedding;  // where it is not: borrowed from the file
  Rotary rotary;
  Cache cache;

  // Tensors by role: "embedding", "final_norm", "head" (none where it is the embedding), and for layer i
  // "layers.i." with attention_norm, query, key, value, output, feed_forward_norm, gate, up, down. Packs them
  // on all workers. Throws std::invalid_argument for a tensor that is missing, of another shape than the
  // spec's, of a type without kernels, or not finite (a borrowed embedding table is not looked through).
  Model(const Spec& spec, const Kernels& kernels, Pool& pool, const std::map<std::string, RawTensor>& tensors,
        CacheType cache_type);

  // The cache, zeroed, and room for its positions' rotations. Throws std::invalid_argument or
  // std::bad_alloc, and then nothing has changed.
  void allocate(int num_blocks);

  void embed(int token, float* out) const;

  // Bytes of packed weights.
  size_t packed_bytes() const;

 private:
  std::vector<Memory> streams_;  // one a worker: its share of every matrix, in the order of use
};

}  // namespace unspool
