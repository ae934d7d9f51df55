#include "model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "sample.h"

namespace unspool {
namespace {

[[noreturn]] void refuse_damaged(const std::string& role) {
  throw std::invalid_argument("tensor '" + role + "' holds values that are not finite; the file is damaged");
}

// Takes tensors by role, checked against the shape that the spec asks for.
class Roles {
 public:
  explicit Roles(const std::map<std::string, RawTensor>& tensors) : tensors_(tensors) {}

  const RawTensor& take(const std::string& role, int rows, int columns) const {
    const auto found = tensors_.find(role);
    if (found == tensors_.end()) throw std::invalid_argument("the model has no tensor for '" + role + "'");
    const RawTensor& tensor = found->second;
    if (tensor.rows != rows || tensor.columns != columns) {
      throw std::invalid_argument("tensor '" + role + "' is " + shape(tensor.rows, tensor.columns) +
                                  ", and the model's sizes need " + shape(rows, columns));
    }
    return tensor;
  }

  std::vector<float> vector(const std::string& role, int columns) const {
    const RawTensor& tensor = take(role, 1, columns);
    std::vector<float> values(columns);
    dequantize_row(tensor.type, tensor.data, columns, values.data());
    for (const float value : values) {
      if (!std::isfinite(value)) refuse_damaged(role);
    }
    return values;
  }

 private:
  static std::string shape(int rows, int columns) { return std::to_string(rows) + " x " + std::to_string(columns); }
  const std::map<std::string, RawTensor>& tensors_;
};

// Lays matrices into one stream a worker, in the order of use, and then packs them.
class Packer {
 public:
  explicit Packer(int workers) : workers_(workers), bytes_(workers, 0) {}

  void add(Matrix& matrix, const RawTensor& tensor, const std::string& role) {
    describe(matrix, tensor);
    matrix.pair_stride = 2 * matrix.panel_bytes;
    for (int w = 0; w < workers_; w++) {
      matrix.shares[w] = share(matrix.panels(), w);
      bytes_[w] += matrix.panel_bytes * matrix.shares[w].count;
    }
    jobs_.push_back({{&matrix}, {&tensor}, {role}});
  }

  // Two panels of each in turn, so that one worker makes whole groups of 32 of both: it can multiply and
  // quantize them on the spot.
  void add_pair(Matrix& a, const RawTensor& tensor_a, Matrix& b, const RawTensor& tensor_b, const std::string& role_a,
                const std::string& role_b) {
    describe(a, tensor_a);
    describe(b, tensor_b);
    a.pair_stride = b.pair_stride = 2 * (a.panel_bytes + b.panel_bytes);
    const int pairs = (a.panels() + 1) / 2;
    for (int w = 0; w < workers_; w++) {
      const Share in_pairs = share(pairs, w);
      const int end = 2 * (in_pairs.first + in_pairs.count);
      a.shares[w].first = b.shares[w].first = 2 * in_pairs.first;
      a.shares[w].count = b.shares[w].count = (end < a.panels() ? end : a.panels()) - a.shares[w].first;
      bytes_[w] += a.pair_stride * in_pairs.count;
    }
    jobs_.push_back({{&a, &b}, {&tensor_a, &tensor_b}, {role_a, role_b}});
  }

  std::vector<Memory> pack(Pool& pool) {
    std::vector<Memory> streams(workers_);
    std::atomic<const std::string*> damaged{nullptr};
    std::atomic<bool> no_memory{false};
    pool.run([&](int w) {
      try {
        streams[w] = Memory(bytes_[w]);
      } catch (const std::bad_alloc&) {
        no_memory = true;
        return;
      }
      uint8_t* next = streams[w].data();
      for (const Job& job : jobs_) next = pack_share(job, w, next, damaged);
    });
    if (no_memory) throw std::bad_alloc();
    if (const std::string* role = damaged) refuse_damaged(*role);
    return streams;
  }

 private:
  struct Job {
    std::vector<Matrix*> matrices;  // one, or two that alternate
    std::vector<const RawTensor*> tensors;
    std::vector<std::string> roles;
  };

  void describe(Matrix& matrix, const RawTensor& tensor) {
    matrix.type = tensor.type;
    matrix.rows = tensor.rows;
    matrix.columns = tensor.columns;
    matrix.panel_bytes = panel_bytes(tensor.type, tensor.columns);
    matrix.shares.resize(workers_);
  }

  Share share(int count, int worker) const {
    const int64_t n = count;
    const int first = static_cast<int>(n * worker / workers_), end = static_cast<int>(n * (worker + 1) / workers_);
    return {nullptr, first, end - first};
  }

  // Returns where the next matrix's share begins.
  uint8_t* pack_share(const Job& job, int w, uint8_t* base, std::atomic<const std::string*>& damaged) const {
    uint8_t* next = base;
    for (size_t m = 0; m < job.matrices.size(); m++) {
      Matrix& matrix = *job.matrices[m];
      matrix.shares[w].base = next;
      next += 2 * matrix.panel_bytes;
      for (int i = 0; i < matrix.shares[w].count; i++) {
        const int panel = matrix.shares[w].first + i;
        if (!pack_panel(*job.tensors[m], panel, matrix.panel(w, i))) damaged = &job.roles[m];
      }
    }
    const Matrix& matrix = *job.matrices[0];
    if (job.matrices.size() == 1) return base + matrix.panel_bytes * matrix.shares[w].count;
    return base + matrix.pair_stride * ((matrix.shares[w].count + 1) / 2);
  }

  int workers_;
  std::vector<size_t> bytes_;
  std::vector<Job> jobs_;
};

// The spec, where the kernels can compute it; int holds every size of such a model.
const Spec& checked(const Spec& s) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
  };
  require(s.vocab_size > 0 && s.hidden_size > 0 && s.intermediate_size > 0 && s.num_layers > 0 && s.num_heads > 0 &&
              s.num_kv_heads > 0 && s.head_dim > 0,
          "every size of a model must be at least 1");
  require(s.hidden_size % 16 == 0 && s.intermediate_size % 16 == 0 && s.head_dim % 16 == 0,
          "the kernels need hidden, intermediate and head sizes that are multiples of 16");
  require(s.head_dim <= kMaxHeadDim, "the kernels take heads of at most 512 dimensions");
  require(s.num_heads <= kMaxHeads, "the kernels take at most 65,536 heads");
  require(s.num_heads % s.num_kv_heads == 0, "query heads must be a multiple of key-value heads");
  require(s.rope_dim % 2 == 0 && s.rope_dim >= 0 && s.rope_dim <= s.head_dim,
          "rotated dimensions must be even and at most the head size");
  require(s.vocab_size <= kMaxVocabulary, "the sampler takes vocabularies of at most 4,194,304 tokens");
  require(s.rope_theta > 0 && s.rope_theta <= std::numeric_limits<float>::max(),
          "the base of the rotary frequencies must be positive");
  require(std::isfinite(s.attention_scale) && s.attention_scale > 0,
          "queries must be multiplied by a number above 0");
  require(std::isfinite(s.attention_softcap) && s.attention_softcap >= 0, "a cap on scores must be above 0, or 0: off");
  require(s.layers.empty() || s.layers.size() == static_cast<size_t>(s.num_layers),
          "a spec describes all of its layers, or none");
  for (const LayerSpec& layer : s.layers) {
    require(layer.window >= 0 && layer.window <= 1 << 30, "a window must be from 1 to 2^30 positions, or 0: off");
  }
  require(s.norm_epsilon >= 0 && s.norm_epsilon <= 1, "the norms' epsilon must be from 0 to 1");
  return s;
}

}  // namespace

int Spec::widest_window() const {
  int widest = layers.empty() ? 0 : layers[0].window;
  for (const LayerSpec& layer : layers) widest = layer.window && widest ? std::max(widest, layer.window) : 0;
  return widest;
}

Model::Model(const Spec& unchecked, const Kernels& kernels, Pool& pool,
             const std::map<std::string, RawTensor>& tensors, CacheType cache_type)
    : spec(checked(unchecked)), kernels(&kernels), rotary(spec.head_dim, spec.rope_dim, spec.rope_theta) {
  const Roles roles(tensors);
  Packer packer(pool.size());
  const int hidden = spec.hidden_size, kv_size = spec.num_kv_heads * spec.head_dim;
  if (static_cast<size_t>(spec.num_layers) > tensors.size()) {
    throw std::invalid_argument("the model has fewer tensors than its " + std::to_string(spec.num_layers) + " layers");
  }
  layers.resize(spec.num_layers);
  for (int i = 0; i < spec.num_layers; i++) {
    Layer& layer = layers[i];
    const std::string at = "layers." + std::to_string(i) + ".";
    const auto add = [&](Matrix& matrix, const char* role, int rows, int columns) {
      packer.add(matrix, roles.take(at + role, rows, columns), at + role);
    };
    layer.attention_norm = roles.vector(at + "attention_norm", hidden);
    add(layer.query, "query", spec.query_size(), hidden);
    add(layer.key, "key", kv_size, hidden);
    add(layer.value, "value", kv_size, hidden);
    add(layer.output, "output", hidden, spec.query_size());
    layer.feed_forward_norm = roles.vector(at + "feed_forward_norm", hidden);
    const RawTensor& gate = roles.take(at + "gate", spec.intermediate_size, hidden);
    const RawTensor& up = roles.take(at + "up", spec.intermediate_size, hidden);
    packer.add_pair(layer.gate, gate, layer.up, up, at + "gate", at + "up");
    add(layer.down, "down", hidden, spec.intermediate_size);
  }
  final_norm = roles.vector("final_norm", hidden);
  tied = tensors.count("head") == 0;
  embedding = roles.take("embedding", spec.vocab_size, hidden);
  const std::string head_role = tied ? "embedding" : "head";
  packer.add(head, roles.take(head_role, spec.vocab_size, hidden), head_role);
  streams_ = packer.pack(pool);
  cache.layout = {cache_type, spec.head_dim};
  cache.layers = spec.num_layers;
  cache.kv_heads = spec.num_kv_heads;
}

void Model::allocate(int num_blocks) {
  if (num_blocks < 0 || num_blocks > kMaxBlocks) {
    throw std::invalid_argument("a cache has 0 to " + std::to_string(kMaxBlocks) + " blocks, not " +
                                std::to_string(num_blocks));
  }
  Cache fresh{cache.layout, cache.layers, cache.kv_heads, 0, Memory()};
  fresh.allocate(num_blocks);
  rotary.allocate(num_blocks * kBlock);
  cache = std::move(fresh);
}

void Model::embed(int token, float* out) const {
  if (tied) return unpack_row(head, token, out);
  dequantize_row(embedding.type, embedding.row(token), embedding.columns, out);
}

size_t Model::packed_bytes() const {
  size_t total = 0;
  for (const Memory& stream : streams_) total += stream.size();
  return total;
}

}  // namespace unspool
