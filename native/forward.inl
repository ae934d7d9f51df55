// One step of a decoder, as every worker of the pool runs it. Included once per instruction set.
#include <cstddef>
#include <cstdint>

#include "model.h"
#include "quant/activations.h"
#include "quant/pack.h"
#include "step.h"
#include "threads.h"

#include "simd/exp.h"
#include "simd/tanh.h"
#include "quant/quantize.h"
#include "quant/matmul.h"
#include "ops/norm.h"
#include "ops/activation.h"
#include "ops/cache_format.h"
#include "ops/attention.h"

namespace unspool::UNSPOOL_ISA {

// One worker's view of a step. Between two barriers each worker writes only its own rows or panels.
struct Worker {
  const Model& model;
  Step& step;
  Pool& pool;
  int worker;
  Scratch& scratch;

  void barrier() { pool.barrier(worker); }
  int begin(int count) const { return static_cast<int>(static_cast<int64_t>(count) * worker / pool.size()); }
  int end(int count) const { return static_cast<int>(static_cast<int64_t>(count) * (worker + 1) / pool.size()); }
  float* residual(int t) const { return step.residual + static_cast<size_t>(model.spec.hidden_size) * t; }
  float* exited(int r) const { return step.exited + static_cast<size_t>(model.spec.hidden_size) * r; }

  // The input of a matrix, made row by row with make(i): by every worker for itself where it is `alone`, else
  // by all for all.
  template <class Make>
  const Activations& prepare(std::vector<Activations>& inputs, bool alone, int count, const Make& make) {
    const Activations& input = inputs[alone ? worker : 0];
    for (int i = alone ? 0 : begin(count); i < (alone ? count : end(count)); i++) make(input, i);
    if (!alone) barrier();
    return input;
  }

  // Row i of an input from floats, in the forms that the input has room for.
  void put(const float* row, const Activations& input, const Activations* fine, const Tiling& tiling, int i) const {
    if (input.codes) quantize_row(row, input, fine, tiling, i);
    if (input.floats) copy_floats(row, input.columns, input.row(i));
  }

  void normalize(const Norm& norm, const float* x, float* out) const {
    unspool::UNSPOOL_ISA::normalize(model.spec.norm, norm, x, model.spec.hidden_size, model.spec.norm_epsilon, out);
  }

  // The input of attention or of the feed-forward, normalized where the model does that first.
  const Activations& read_residual(const RowSet& rows, const Norm& norm, const Activations* fine) {
    return prepare(step.hidden_input, rows.alone, rows.count(), [&](const Activations& input, int i) {
      const float* row = residual(rows.tokens[i]);
      if (model.spec.norm_first) {
        normalize(norm, row, scratch.row);
        row = scratch.row;
      }
      put(row, input, fine, rows.tiling, i);
    });
  }

  // Room for what int8 rounds away of the values' input, where the values' weights are multiplied as integers.
  const Activations* fine_input(const Layer& weights) const {
    return is_quantized(weights.value.type) ? &step.fine_input[step.all.alone ? worker : 0] : nullptr;
  }

  void embed() {
    const StepBatch& b = step.batch;
    for (int t = begin(b.num_tokens); t < end(b.num_tokens); t++) model.embed(b.tokens[t], b.positions[t], residual(t));
    barrier();
  }

  static f32x16 rotate(const Rotary* rotary, f32x16 v, int position, int d) {
    if (!rotary) return v;
    return fma(v, load(rotary->cosines(position) + d), swap_pairs(v) * load(rotary->sines(position) + d));
  }

  // Queries rotated and scaled; keys rotated, and keys and values written to the cache. Queries that have a norm, keys
  // that have one and vectors that are written whole are set aside for complete(). Of all matrices the values' suffers
  // most from an input in int8, and it is small: it alone takes the fine part too.
  void project(int layer) {
    const Layer& weights = model.layers[layer];
    const Activations* fine = fine_input(weights);
    const Activations& input = read_residual(step.all, weights.attention_norm, fine);
    const Spec& spec = model.spec;
    const StepBatch& b = step.batch;
    const Tiling& tiling = step.all.tiling;
    const Cache& cache = model.cache;
    const size_t kv_size = static_cast<size_t>(spec.num_kv_heads) * spec.head_dim;
    const bool normed = spec.query_key_norm != QueryKeyNorm::None;
    const Rotary* rotary = normed ? nullptr : weights.rotary;
    const f32x16 scale = set(normed ? 1.0f : spec.attention_scale);
    multiply(weights.query, worker, input, nullptr, tiling, [&](int panel, int first, int n, const float* out) {
      const int d = 16 * panel % spec.head_dim;
      float* query = step.query(16 * panel / spec.head_dim, first) + d;
      for (int t = first; t < first + n; t++, out += 16, query += step.query_stride()) {
        store(query, rotate(rotary, load(out), b.positions[t], d) * scale);
      }
    });
    multiply(weights.key, worker, input, nullptr, tiling, [&](int panel, int first, int n, const float* out) {
      const int head = 16 * panel / spec.head_dim, d = 16 * panel % spec.head_dim;
      if (step.keys) {
        float* keys = step.keys + kv_size * first + 16 * panel;
        for (int i = 0; i < n; i++) store(keys + kv_size * i, load(out + 16 * i));
        return;
      }
      with_format(cache.layout.type, [&](auto format) {
        using Format = decltype(format);
        if constexpr (!Format::kWhole) {
          for (int i = 0; i < n; i++) {
            const int t = first + i, slot = b.slots[t];
            const f32x16 key = bounded_key<Format>(rotate(rotary, load(out + 16 * i), b.positions[t], d));
            write_key<Format>(cache.head(slot / kBlock, layer, head), slot % kBlock, d, key);
          }
        }
      });
    });
    multiply(weights.value, worker, input, fine, tiling, [&](int panel, int first, int n, const float* out) {
      const int head = 16 * panel / spec.head_dim, d = 16 * panel % spec.head_dim;
      with_format(cache.layout.type, [&](auto format) {
        using Format = decltype(format);
        for (int i = 0; i < n; i++) {
          const int t = first + i, slot = b.slots[t];
          const f32x16 value = bounded_value<Format>(load(out + 16 * i));
          if constexpr (Format::kWhole) {
            store(step.values + kv_size * t + 16 * panel, value);
          } else {
            write_value<Format>(cache.layout, cache.head(slot / kBlock, layer, head), slot % kBlock, d, value);
          }
        }
      });
    });
    if (step.keys) complete(layer);
  }

  // What project set aside, now that heads are whole.
  void complete(int layer) {
    barrier();
    if (model.spec.query_key_norm != QueryKeyNorm::None) complete_queries(layer);
    with_format(model.cache.layout.type, [&](auto format) { complete_keys<decltype(format)>(layer); });
  }

  void complete_queries(int layer) {
    const Layer& weights = model.layers[layer];
    const Spec& spec = model.spec;
    const bool whole = spec.query_key_norm == QueryKeyNorm::Whole;
    const int together = whole ? spec.num_heads : 1, count = step.batch.num_tokens * (spec.num_heads / together);
    const f32x16 attention_scale = set(spec.attention_scale);
    for (int i = begin(count); i < end(count); i++) {
      const int t = whole ? i : i / spec.num_heads, first = whole ? 0 : i % spec.num_heads;
      f32x16 squares = zero();
      for (int h = first; h < first + together; h++) {
        squares = add_squares(step.query(h, t), spec.head_dim, zero(), squares);
      }
      const f32x16 scale = inverse_root(squares, together * spec.head_dim, spec.norm_epsilon);
      for (int h = first; h < first + together; h++) {
        const float* weight = weights.query_norm.data() + (whole ? spec.head_dim * h : 0);
        float* query = step.query(h, t);
        for (int d = 0; d < spec.head_dim; d += 16) {
          const f32x16 normed = load(query + d) * scale * load(weight + d);
          store(query + d, rotate(weights.rotary, normed, step.batch.positions[t], d) * attention_scale);
        }
      }
    }
  }

  template <class Format>
  void complete_keys(int layer) {
    const Layer& weights = model.layers[layer];
    const Spec& spec = model.spec;
    const Cache& cache = model.cache;
    const bool normed = spec.query_key_norm != QueryKeyNorm::None, whole = spec.query_key_norm == QueryKeyNorm::Whole;
    const int heads = spec.num_kv_heads, head_dim = spec.head_dim, count = step.batch.num_tokens * heads;
    for (int i = begin(count); i < end(count); i++) {
      const int t = i / heads, head = i % heads, slot = step.batch.slots[t];
      const float* key = step.keys + static_cast<size_t>(head_dim) * i;
      const float* weight = weights.key_norm.data() + (whole ? head_dim * head : 0);
      f32x16 scale = zero();
      if (normed) {  // by that of all heads: each that is made sums them anew, in one order
        const float* first = whole ? step.keys + static_cast<size_t>(head_dim) * heads * t : key;
        const int n = whole ? head_dim * heads : head_dim;
        scale = inverse_root(add_squares(first, n, zero(), zero()), n, spec.norm_epsilon);
      }
      uint8_t* place = cache.head(slot / kBlock, layer, head);
      for (int d = 0; d < head_dim; d += 16) {
        const f32x16 v = normed ? load(key + d) * scale * load(weight + d) : load(key + d);
        const f32x16 bounded = bounded_key<Format>(rotate(weights.rotary, v, step.batch.positions[t], d));
        if constexpr (Format::kWhole) {
          store(scratch.row + d, bounded);
        } else {
          write_key<Format>(place, slot % kBlock, d, bounded);
        }
      }
      if constexpr (Format::kWhole) {
        write_bytes(cache.layout, place, slot % kBlock, scratch.row, step.values + static_cast<size_t>(head_dim) * i);
      }
    }
  }

  void attend_all(int layer, const RowSet& rows) {
    const int count = static_cast<int>(rows.items.size());
    for (;;) {
      const int i = step.next_item[layer].fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      with_format(model.cache.layout.type, [&](auto format) {
        attend<decltype(format)>(model, step, layer, rows.items[i], scratch);
      });
    }
  }

  const Activations& take_attended(int layer, const RowSet& rows) {
    const size_t size = model.spec.query_size();
    return prepare(step.attended_input, rows.alone, rows.count(), [&](const Activations& input, int i) {
      float* row = step.attended + size * rows.tokens[i];
      if (step.split_pieces) merge_parts(model, step, layer, rows.tokens[i], row = scratch.row);
      put(row, input, nullptr, rows.tiling, i);
    });
  }

  // What a matrix gives, normalized where the model does that, times residual_scale.
  void add_to_residual(const RowSet& rows, const Matrix& matrix, const Activations& input, const Norm& after) {
    const f32x16 scale = set(model.spec.residual_scale);
    if (model.spec.norm_after) return add_normalized(rows, matrix, input, after);
    multiply(matrix, worker, input, nullptr, rows.tiling, [&](int panel, int first, int n, const float* out) {
      for (int i = first; i < first + n; i++, out += 16) {
        float* x = residual(rows.tokens[i]) + 16 * panel;
        prefetch_near(x + 16);  // for the next panel
        store(x, fma(load(out), scale, load(x)));
      }
    });
  }

  void add_normalized(const RowSet& rows, const Matrix& matrix, const Activations& input, const Norm& after) {
    const size_t hidden = model.spec.hidden_size;
    const f32x16 scale = set(model.spec.residual_scale);
    multiply(matrix, worker, input, nullptr, rows.tiling, [&](int panel, int first, int n, const float* out) {
      for (int i = first; i < first + n; i++, out += 16) store(step.added + hidden * i + 16 * panel, load(out));
    });
    barrier();
    for (int i = begin(rows.count()); i < end(rows.count()); i++) {
      float* x = residual(rows.tokens[i]);
      normalize(after, step.added + hidden * i, scratch.row);
      for (size_t d = 0; d < hidden; d += 16) store(x + d, fma(load(scratch.row + d), scale, load(x + d)));
    }
  }

  // The activation of the gate, times up where there are both, quantized by the worker that made the 32 values of a
  // group.
  void feed_forward(const RowSet& rows, const Layer& weights, const Norm& norm) {
    const Activations& input = read_residual(rows, norm, nullptr);
    const Spec& spec = model.spec;
    const Matrix& acted = spec.gated ? weights.gate : weights.up;
    const Multiplier act(acted, input, rows.tiling), up(weights.up, input, rows.tiling);
    const Activations& out = step.feed_forward_input;
    const Share& share = acted.shares[worker];
    alignas(64) float acts[2][kTile * 16], ups[2][kTile * 16], activated[kTile * 32];
    for_each_span(rows.tiling, [&](int first_tile, int last_tile) {
      for (int i = 0; i < share.count; i += 2) {
        const int panels = share.count - i < 2 ? 1 : 2, first_panel = share.first + i, column = 16 * first_panel;
        for (int tile = first_tile; tile < last_tile; tile++) {
          const bool ahead = tile == first_tile;
          const int start = rows.tiling.start(tile), n = rows.tiling.start(tile + 1) - start;
          const auto make = [&](const Matrix& matrix, const Multiplier& product, int k, float* made) {
            product(matrix.panel(worker, i + k), tile, ahead, made);
            add_bias(matrix, first_panel + k, n, made);
          };
          for (int k = 0; k < panels; k++) make(acted, act, k, acts[k]);
          for (int k = 0; k < panels && spec.gated; k++) make(weights.up, up, k, ups[k]);
          for (int k = 0; k < panels; k++) {
            activate(spec.activation, acts[k], spec.gated ? ups[k] : nullptr, n, activated + 16 * k);
          }
          for (int t = 0; t < n; t++) {
            const float* group = activated + 32 * t;
            if (out.codes) quantize_group(group, out, out.place(start) + static_cast<size_t>(column / 32) * n + t);
            if (out.floats) copy_floats(group, 16 * panels, out.row(start + t) + column);
          }
        }
      }
    });
  }

  // Sets aside the residuals of rows that are taken after this many layers. The next layer adds to them only
  // once every worker has passed another barrier.
  void keep_exits(int layers) {
    const int first = step.early_starts[layers], count = step.early_starts[layers + 1] - first;
    for (int i = first + begin(count); i < first + end(count); i++) {
      const int r = step.early_rows[i];
      copy_floats(residual(step.batch.rows[r]), model.spec.hidden_size, exited(r));
    }
  }

  // Final norm of the rows that are wanted: into the head's input, or out as hidden states.
  void finish() {
    const StepBatch& b = step.batch;
    const auto norm = [&](const float* x, float* out) { normalize(model.final_norm, x, out); };
    for (int h = begin(b.num_hidden); h < end(b.num_hidden); h++) norm(residual(b.hidden_rows[h]), step.hidden.row(h));
    if (!b.num_rows) return;
    const auto make = [&](const Activations& into, int r) {
      norm(b.is_early(r, model.spec.num_layers) ? exited(r) : residual(b.rows[r]), scratch.row);
      put(scratch.row, into, nullptr, step.head_tiling, r);
    };
    const Activations& input = prepare(step.hidden_input, step.head_alone, b.num_rows, make);
    const f32x16 scale = set(model.spec.logit_scale), cap = set(model.spec.final_softcap);
    const bool capped = model.spec.final_softcap != 0;
    multiply(model.head, worker, input, nullptr, step.head_tiling, [&](int panel, int first, int n, const float* out) {
      for (int r = first; r < first + n; r++, out += 16) {
        f32x16 logits = load(out) * scale;
        if (capped) logits = cap * tanh(logits / cap);
        store(step.logits.row(r) + 16 * panel, logits);
      }
    });
  }
};

static void forward(const Model& model, Step& step, Pool& pool, int worker) {
  Worker w{model, step, pool, worker, step.scratch[worker]};
  w.embed();
  const int last = model.spec.num_layers - 1;
  for (int layer = 0; layer <= last; layer++) {
    const Layer& weights = model.layers[layer];
    w.keep_exits(layer);
    w.project(layer);
    w.barrier();
    const RowSet& rows = layer == last ? step.wanted : step.all;
    if (rows.count() == 0) break;
    w.attend_all(layer, rows);
    w.barrier();
    if (model.spec.parallel_residual) {
      w.feed_forward(rows, weights, weights.attention_norm);
      w.barrier();
    }
    w.add_to_residual(rows, weights.output, w.take_attended(layer, rows), weights.attention_post_norm);
    w.barrier();
    if (!model.spec.parallel_residual) {
      w.feed_forward(rows, weights, weights.feed_forward_norm);
      w.barrier();
    }
    w.add_to_residual(rows, weights.down, step.feed_forward_input, weights.feed_forward_post_norm);
    w.barrier();
  }
  w.finish();
}

}  // namespace unspool::UNSPOOL_ISA
