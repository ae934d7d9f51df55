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

enum class NormKind { Rms, Layer };
enum class QueryKeyNorm { None, Head, Whole };
enum class Activation { Silu, GeluTanh, Gelu };

struct LayerSpec {
  int window = 0;  // a token attends to that many of its last positions, its own included; 0: to all
  int rotary = 0;  // of Spec::rotaries; -1: queries and keys are not rotated
};

// unspool.model.spec.ModelSpec says what each switch means.
struct Spec {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float norm_epsilon = 0;
  std::vector<RotarySpec> rotaries;
  float attention_scale = 0;    // queries are multiplied by it
  float attention_softcap = 0;  // scores become cap * tanh(score / cap); 0: off
  std::vector<LayerSpec> layers;  // [num_layers], or none: all as by default
  NormKind norm = NormKind::Rms;
  bool norm_first = true;
  bool norm_after = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::None;
  Activation activation = Activation::Silu;
  bool gated = true;
  int learned_positions = 0;
  bool parallel_residual = false;
  float final_softcap = 0;
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;

  LayerSpec layer(int i) const { return layers.empty() ? LayerSpec() : layers[i]; }
  int window(int i) const { return layer(i).window; }
  int widest_window() const;  // of any layer; 0 where one has none
  int query_size() const { return num_heads * head_dim; }
  int group_heads() const { return num_heads / num_kv_heads; }  // query heads that share a kv head
};

// Without weights: none. Without biases: nothing is added.
struct Norm {
  std::vector<float> weight, bias;
};

struct Layer {
  Norm attention_norm, attention_post_norm;
  Matrix query, key, value, output;
  std::vector<float> query_norm, key_norm;  // [head_dim] or [heads * head_dim], in the order of packed rows
  Norm feed_forward_norm, feed_forward_post_norm;
  Matrix gate, up, down;
  const Rotary* rotary = nullptr;  // of Model::rotaries, or none
};

struct Model {
  Spec spec;
  const Kernels* kernels;
  std::vector<Layer> layers;
  Norm final_norm;
  Matrix head;
  bool tied = true;     // the embedding table is the packed head
  RawTensor embedding;  // where it is not: borrowed from the file
  std::vector<float> positions;  // [learned_positions][hidden_size]
  std::vector<Rotary> rotaries;
  Cache cache;

  // Tensors by role: "embedding", "positions", "final_norm", "head" (none where it is the embedding), and for layer i
  // "layers.i." with attention_norm, query, key, value, query_norm, key_norm, output, attention_post_norm,
  // feed_forward_norm, gate, up, down, feed_forward_post_norm, each as the spec asks for it; and biases of norms and
  // matrices, such as "layers.0.query_bias", where there are any. Packs them on all workers. Throws
  // std::invalid_argument for a tensor that is missing, of another shape than the spec's, of no use to it, of a type
  // without kernels, or not finite (a borrowed embedding table is not looked through).
  Model(const Spec& spec, const Kernels& kernels, Pool& pool, const std::map<std::string, RawTensor>& tensors,
        CacheType cache_type);

  // The cache, zeroed, and room for its positions' rotations. Throws std::invalid_argument or
  // std::bad_alloc, and then nothing has changed.
  void allocate(int num_blocks);

  // A token's embedding at a position, scaled, with what the model has learned of the position.
  void embed(int token, int position, float* out) const;
  // Computes what is missing of the rotations of positions 0 to positions - 1.
  void extend_rotaries(int positions);

  // Bytes of packed weights.
  size_t packed_bytes() const;

 private:
  std::vector<Memory> streams_;  // one a worker: its share of every matrix, in the order of use
};

}  // namespace unspool
