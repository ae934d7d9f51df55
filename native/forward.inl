// One step of a Llama-shaped decoder, as every worker of the pool runs it. Included once per instruction set.
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
#include "ops/swiglu.h"
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

  const Activations& normalize(const RowSet& rows, const std::vector<float>& weight, const Activations* fine) {
    return prepare(step.hidden_input, rows.alone, rows.count(), [&](const Activations& input, int i) {
      float* row = scratch.row;
      rms_norm(residual(rows.tokens[i]), weight.data(), model.spec.hidden_size, model.spec.norm_epsilon, row);
      put(row, input, fine, rows.tiling, i);
    });
  }

  // Room for what int8 rounds away of the values' input, where the values' weights are multiplied as integers.
  const Activations* fine_input(const Layer& weights) const {
    return is_quantized(weights.value.type) ? &step.fine_input[step.all.alone ? worker : 0] : nullptr;
  }

  void embed() {
    const int count = step.batch.num_tokens;
    for (int t = begin(count); t < end(count); t++) model.embed(step.batch.tokens[t], residual(t));
    barrier();
  }

  // Queries rotated and scaled; keys rotated, and keys and values written to the cache, or set aside for
  // write_whole. Of all matrices the values' suffers most from an input in int8, and it is small: it alone
  // takes the fine part too.
  void project(int layer) {
    const Layer& weights = model.layers[layer];
    const Activations* fine = fine_input(weights);
    const Activations& input = normalize(step.all, weights.attention_norm, fine);
    const Spec& spec = model.spec;
    const StepBatch& b = step.batch;
    const Tiling& tiling = step.all.tiling;
    const Cache& cache = model.cache;
    const size_t kv_size = static_cast<size_t>(spec.num_kv_heads) * spec.head_dim;
    const auto rotate = [&](f32x16 v, int t, int d) {
      const float* cosines = model.rotary.cosines(b.positions[t]) + d;
      const float* sines = model.rotary.sines(b.positions[t]) + d;
      return fma(v, load(cosines), swap_pairs(v) * load(sines));
    };
    const f32x16 scale = set(spec.attention_scale);
    multiply(weights.query, worker, input, nullptr, tiling, [&](int panel, int first, int n, const float* out) {
      const int d = 16 * panel % spec.head_dim;
      float* query = step.query(16 * panel / spec.head_dim, first) + d;
      for (int t = first; t < first + n; t++, out += 16, query += step.query_stride()) {
        store(query, rotate(load(out), t, d) * scale);
      }
    });
    multiply(weights.key, worker, input, nullptr, tiling, [&](int panel, int first, int n, const float* out) {
      const int head = 16 * panel / spec.head_dim, d = 16 * panel % spec.head_dim;
      with_format(cache.layout.type, [&](auto format) {
        using Format = decltype(format);
        for (int i = 0; i < n; i++) {
          const int t = first + i, slot = b.slots[t];
          const f32x16 key = bounded_key<Format>(rotate(load(out + 16 * i), t, d));
          if constexpr (Format::kWhole) {
            store(step.keys + kv_size * t + 16 * panel, key);
          } else {
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
    if (cache.layout.scaled()) write_whole(layer);
  }

  // Keys and values that project set aside, each a head's whole vector, which the scale is made of.
  void write_whole(int layer) {
    barrier();
    const Cache& cache = model.cache;
    const int heads = cache.kv_heads, head_dim = cache.layout.head_dim, count = step.batch.num_tokens * heads;
    for (int i = begin(count); i < end(count); i++) {
      const int slot = step.batch.slots[i / heads];
      const size_t at = static_cast<size_t>(head_dim) * i;
      write_bytes(cache.layout, cache.head(slot / kBlock, layer, i % heads), slot % kBlock, step.keys + at,
                  step.values + at);
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

  void add_to_residual(const RowSet& rows, const Matrix& matrix, const Activations& input) {
    multiply(matrix, worker, input, nullptr, rows.tiling, [&](int panel, int first, int n, const float* out) {
      for (int i = first; i < first + n; i++, out += 16) {
        float* x = residual(rows.tokens[i]) + 16 * panel;
        prefetch_near(x + 16);  // for the next panel
        store(x, load(x) + load(out));
      }
    });
  }

  // swiglu of the gate and up matrices, quantized by the worker that made the 32 values of a group.
  void feed_forward(const RowSet& rows, const Layer& weights) {
    const Activations& input = normalize(rows, weights.feed_forward_norm, nullptr);
    const Multiplier gate(weights.gate, input, rows.tiling), up(weights.up, input, rows.tiling);
    const Activations& out = step.feed_forward_input;
    const Share& share = weights.gate.shares[worker];
    alignas(64) float gates[2][kTile * 16], ups[2][kTile * 16], activated[kTile * 32];
    for_each_span(rows.tiling, [&](int first_tile, int last_tile) {
      for (int i = 0; i < share.count; i += 2) {
        const int panels = share.count - i < 2 ? 1 : 2, column = 16 * (share.first + i);
        for (int tile = first_tile; tile < last_tile; tile++) {
          const bool ahead = tile == first_tile;
          for (int k = 0; k < panels; k++) gate(weights.gate.panel(worker, i + k), tile, ahead, gates[k]);
          for (int k = 0; k < panels; k++) up(weights.up.panel(worker, i + k), tile, ahead, ups[k]);
          const int start = rows.tiling.start(tile), n = rows.tiling.start(tile + 1) - start;
          for (int k = 0; k < panels; k++) swiglu(gates[k], ups[k], n, activated + 16 * k);
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
    const auto norm = [&](const float* x, float* out) {
      rms_norm(x, model.final_norm.data(), model.spec.hidden_size, model.spec.norm_epsilon, out);
    };
    for (int h = begin(b.num_hidden); h < end(b.num_hidden); h++) norm(residual(b.hidden_rows[h]), step.hidden.row(h));
    if (!b.num_rows) return;
    const auto make = [&](const Activations& into, int r) {
      norm(b.is_early(r, model.spec.num_layers) ? exited(r) : residual(b.rows[r]), scratch.row);
      put(scratch.row, into, nullptr, step.head_tiling, r);
    };
    const Activations& input = prepare(step.hidden_input, step.head_alone, b.num_rows, make);
    multiply(model.head, worker, input, nullptr, step.head_tiling, [&](int panel, int first, int n, const float* out) {
      for (int r = first; r < first + n; r++, out += 16) store(step.logits.row(r) + 16 * panel, load(out));
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
    w.add_to_residual(rows, weights.output, w.take_attended(layer, rows));
    w.barrier();
    w.feed_forward(rows, weights);
    w.barrier();
    w.add_to_residual(rows, weights.down, step.feed_forward_input);
    w.barrier();
  }
  w.finish();
}

}  // namespace unspool::UNSPOOL_ISA
