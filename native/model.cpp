#include "model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <set>
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

  bool has(const std::string& role) const { return tensors_.count(role) != 0; }

  const RawTensor& take(const std::string& role, int rows, int columns) {
    const auto found = tensors_.find(role);
    if (found == tensors_.end()) throw std::invalid_argument("the model has no tensor for '" + role + "'");
    taken_.insert(role);
    const RawTensor& tensor = found->second;
    if (tensor.rows != rows || tensor.columns != columns) {
      throw std::invalid_argument("tensor '" + role + "' is " + shape(tensor.rows, tensor.columns) +
                                  ", and the model's sizes need " + shape(rows, columns));
    }
    return tensor;
  }

  std::vector<float> floats(const std::string& role, int rows, int columns) {
    const RawTensor& tensor = take(role, rows, columns);
    std::vector<float> values(static_cast<size_t>(rows) * columns);
    for (int r = 0; r < rows; r++) {
      dequantize_row(tensor.type, tensor.row(r), columns, values.data() + static_cast<size_t>(columns) * r);
    }
    for (const float value : values) {
      if (!std::isfinite(value)) refuse_damaged(role);
    }
    return values;
  }

  // In the order of packed rows.
  std::vector<float> vector(const std::string& role, int columns, const RowOrder& order) {
    const std::vector<float> values = floats(role, 1, columns);
    std::vector<float> ordered(columns);
    for (int r = 0; r < columns; r++) ordered[r] = values[order(r)];
    return ordered;
  }

  // Of a matrix, to whole panels; none where the model has none.
  std::vector<float> bias(const std::string& matrix, int rows, const RowOrder& order) {
    if (!has(matrix + "_bias")) return {};
    std::vector<float> values = vector(matrix + "_bias", rows, order);
    values.resize((rows + kPanelRows - 1) / kPanelRows * kPanelRows);
    return values;
  }

  Norm norm(const std::string& role, int columns) {
    Norm norm{floats(role, 1, columns), {}};
    if (has(role + "_bias")) norm.bias = floats(role + "_bias", 1, columns);
    return norm;
  }

  // Tensors of layers beyond the model's may stay.
  void refuse_unused(int num_layers) const {
    for (const auto& [role, tensor] : tensors_) {
      const bool beyond = role.rfind("layers.", 0) == 0 && std::atoi(role.c_str() + 7) >= num_layers;
      if (!beyond && !taken_.count(role)) {
        throw std::invalid_argument("tensor '" + role + "' has no use in a model of these switches");
      }
    }
  }

 private:
  static std::string shape(int rows, int columns) { return std::to_string(rows) + " x " + std::to_string(columns); }
  const std::map<std::string, RawTensor>& tensors_;
  std::set<std::string> taken_;
};

// Lays matrices into one stream a worker, in the order of use, and then packs them.
class Packer {
 public:
  explicit Packer(int workers) : workers_(workers), bytes_(workers, 0) {}

  struct Part {
    Matrix& matrix;
    const RawTensor& tensor;
    std::string role;
    RowOrder order = {};
  };

  void add(const Part& part) {
    describe(part);
    Matrix& matrix = part.matrix;
    matrix.pair_stride = 2 * matrix.panel_bytes;
    for (int w = 0; w < workers_; w++) {
      matrix.shares[w] = share(matrix.panels(), w);
      bytes_[w] += matrix.panel_bytes * matrix.shares[w].count;
    }
    jobs_.push_back({part});
  }

  // Two panels of each in turn, so that one worker makes whole groups of 32 of all: it can multiply and
  // quantize them on the spot. They have as many rows.
  void add_in_pairs(const std::vector<Part>& parts) {
    size_t stride = 0;
    for (const Part& part : parts) {
      describe(part);
      stride += 2 * part.matrix.panel_bytes;
    }
    for (const Part& part : parts) {
      Matrix& matrix = part.matrix;
      matrix.pair_stride = stride;
      for (int w = 0; w < workers_; w++) {
        const Share in_pairs = share((matrix.panels() + 1) / 2, w);
        const int first = 2 * in_pairs.first, end = std::min(first + 2 * in_pairs.count, matrix.panels());
        matrix.shares[w] = {nullptr, first, end - first};
        bytes_[w] += 2 * matrix.panel_bytes * in_pairs.count;
      }
    }
    jobs_.push_back(parts);
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
  using Job = std::vector<Part>;  // one matrix, or several that alternate

  void describe(const Part& part) {
    const RawTensor& tensor = part.tensor;
    Matrix& matrix = part.matrix;
    matrix.type = packed_type(tensor.type);
    matrix.rows = tensor.rows;
    matrix.columns = tensor.columns;
    matrix.panel_bytes = panel_bytes(matrix.type, tensor.columns);
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
    for (const Part& part : job) {
      Matrix& matrix = part.matrix;
      matrix.shares[w].base = next;
      next += 2 * matrix.panel_bytes;
      for (int i = 0; i < matrix.shares[w].count; i++) {
        const int panel = matrix.shares[w].first + i;
        if (!pack_panel(part.tensor, part.order, panel, matrix.panel(w, i))) damaged = &part.role;
      }
    }
    const Matrix& matrix = job[0].matrix;
    if (job.size() == 1) return base + matrix.panel_bytes * matrix.shares[w].count;
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
  require(s.vocab_size <= kMaxVocabulary, "the sampler takes vocabularies of at most 4,194,304 tokens");
  require(std::isfinite(s.attention_scale) && s.attention_scale > 0,
          "queries must be multiplied by a number above 0");
  require(std::isfinite(s.attention_softcap) && s.attention_softcap >= 0, "a cap on scores must be above 0, or 0: off");
  require(s.layers.empty() || s.layers.size() == static_cast<size_t>(s.num_layers),
          "a spec describes all of its layers, or none");
  for (const LayerSpec& layer : s.layers) {
    require(layer.window >= 0 && layer.window <= 1 << 30, "a window must be from 1 to 2^30 positions, or 0: off");
    require(layer.rotary >= -1 && layer.rotary < static_cast<int>(s.rotaries.size()),
            "a layer's rotary embedding must be one of the model's");
  }
  require(!s.layers.empty() || !s.rotaries.empty(), "layers by default are rotated, and there is no rotary embedding");
  for (const RotarySpec& rotary : s.rotaries) {
    require(rotary.inverse_frequencies.size() <= static_cast<size_t>(s.head_dim) / 2,
            "rotated dimensions must be at most the head size");
    bool finite = std::isfinite(rotary.factor);
    for (const float frequency : rotary.inverse_frequencies) finite = finite && std::isfinite(frequency);
    require(finite, "rotary frequencies and their factor must be finite");
  }
  require(std::isfinite(s.final_softcap) && s.final_softcap >= 0, "a cap on logits must be above 0, or 0: off");
  require(std::isfinite(s.embedding_scale) && std::isfinite(s.residual_scale) && std::isfinite(s.logit_scale),
          "scales must be finite");
  require(s.learned_positions >= 0, "learned positions must be at least 1, or 0: none");
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
    : spec(checked(unchecked)), kernels(&kernels) {
  Roles roles(tensors);
  Packer packer(pool.size());
  const int hidden = spec.hidden_size, kv_size = spec.num_kv_heads * spec.head_dim;
  if (static_cast<size_t>(spec.num_layers) > tensors.size()) {
    throw std::invalid_argument("the model has fewer tensors than its " + std::to_string(spec.num_layers) + " layers");
  }
  for (const RotarySpec& rotary : spec.rotaries) rotaries.emplace_back(spec.head_dim, rotary);
  const auto part = [&](Matrix& matrix, const std::string& role, int rows, int columns, const RowOrder& order = {}) {
    matrix.bias = roles.bias(role, rows, order);
    return Packer::Part{matrix, roles.take(role, rows, columns), role, order};
  };
  layers.resize(spec.num_layers);
  for (int i = 0; i < spec.num_layers; i++) {
    Layer& layer = layers[i];
    const std::string at = "layers." + std::to_string(i) + ".";
    RowOrder order;
    if (const int rotary = spec.layer(i).rotary; rotary >= 0) {
      layer.rotary = &rotaries[rotary];
      order = {spec.head_dim, spec.rotaries[rotary].halves ? spec.rotaries[rotary].dim() : 0};
    }
    if (spec.norm_first) layer.attention_norm = roles.norm(at + "attention_norm", hidden);
    packer.add(part(layer.query, at + "query", spec.query_size(), hidden, order));
    packer.add(part(layer.key, at + "key", kv_size, hidden, order));
    packer.add(part(layer.value, at + "value", kv_size, hidden));
    if (spec.query_key_norm != QueryKeyNorm::None) {
      const bool whole = spec.query_key_norm == QueryKeyNorm::Whole;
      layer.query_norm = roles.vector(at + "query_norm", whole ? spec.query_size() : spec.head_dim, order);
      layer.key_norm = roles.vector(at + "key_norm", whole ? kv_size : spec.head_dim, order);
    }
    packer.add(part(layer.output, at + "output", hidden, spec.query_size()));
    if (spec.norm_after) layer.attention_post_norm = roles.norm(at + "attention_post_norm", hidden);
    if (spec.norm_first && !spec.parallel_residual) {
      layer.feed_forward_norm = roles.norm(at + "feed_forward_norm", hidden);
    }
    std::vector<Packer::Part> inner;
    if (spec.gated) inner.push_back(part(layer.gate, at + "gate", spec.intermediate_size, hidden));
    inner.push_back(part(layer.up, at + "up", spec.intermediate_size, hidden));
    packer.add_in_pairs(inner);
    packer.add(part(layer.down, at + "down", hidden, spec.intermediate_size));
    if (spec.norm_after) layer.feed_forward_post_norm = roles.norm(at + "feed_forward_post_norm", hidden);
  }
  final_norm = roles.norm("final_norm", hidden);
  if (spec.learned_positions) positions = roles.floats("positions", spec.learned_positions, hidden);
  tied = !roles.has("head");
  embedding = roles.take("embedding", spec.vocab_size, hidden);
  head.bias = roles.bias("head", spec.vocab_size, {});
  const std::string head_role = tied ? "embedding" : "head";
  packer.add({head, roles.take(head_role, spec.vocab_size, hidden), head_role});
  roles.refuse_unused(spec.num_layers);
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
  std::vector<Memory> tables;
  for (const Rotary& rotary : rotaries) tables.push_back(rotary.room_for(num_blocks * kBlock));
  for (size_t i = 0; i < rotaries.size(); i++) rotaries[i].replace(std::move(tables[i]));
  cache = std::move(fresh);
}

void Model::extend_rotaries(int positions) {
  for (Rotary& rotary : rotaries) rotary.extend(positions);
}

void Model::embed(int token, int position, float* out) const {
  if (tied) {
    unpack_row(head, token, out);
  } else {
    dequantize_row(embedding.type, embedding.row(token), embedding.columns, out);
  }
  const int hidden = spec.hidden_size;
  if (spec.embedding_scale != 1) {
    for (int i = 0; i < hidden; i++) out[i] *= spec.embedding_scale;
  }
  if (spec.learned_positions) {
    const float* learned = positions.data() + static_cast<size_t>(hidden) * position;
    for (int i = 0; i < hidden; i++) out[i] += learned[i];
  }
}

size_t Model::packed_bytes() const {
  size_t total = 0;
  for (const Memory& stream : streams_) total += stream.size();
  return total;
}

}  // namespace unspool
