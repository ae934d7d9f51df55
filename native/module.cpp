// The Python module unspool._native: thread pools, models and steps.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "isa.h"
#include "model.h"
#include "probe.h"
#include "sample_binding.h"
#include "step.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace unspool {
namespace {

template <class T, int N>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The Python `(type, rows, columns, bytes)` of each role; sizes are checked against the bytes here. Nothing is
// converted: the bytes are borrowed, and a converted copy would be gone when this returns.
RawTensor raw_tensor(const std::string& role, nb::handle value) {
  std::tuple<int, int, int, Array<uint8_t, 1>> fields;
  if (!nb::try_cast(value, fields, false)) {
    throw std::invalid_argument("tensor '" + role + "' must be (type, rows, columns, contiguous uint8 array)");
  }
  const auto& [type, rows, columns, bytes] = fields;
  if (!is_supported(type)) {
    throw std::invalid_argument("tensor '" + role + "' has type " + std::to_string(type) + ", which has no kernels");
  }
  const RawTensor tensor{static_cast<TensorType>(type), rows, columns, bytes.data()};
  if (rows < 1 || columns < 1 || columns % block_columns(tensor.type)) {
    throw std::invalid_argument("tensor '" + role + "' has a shape that its type cannot have");
  }
  if (bytes.size() != row_bytes(tensor.type, columns) * static_cast<size_t>(rows)) {
    throw std::invalid_argument("tensor '" + role + "' has " + std::to_string(bytes.size()) + " bytes for " +
                                std::to_string(rows) + " x " + std::to_string(columns) + " values");
  }
  return tensor;
}

// A whole tensor as float32: as its file has it, or as the kernels have it once packed.
nb::object values(const RawTensor& tensor, bool packed) {
  const size_t columns = tensor.columns, size = columns * tensor.rows;
  auto* out = new float[size];
  const nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  Matrix matrix{packed_type(tensor.type), tensor.rows, tensor.columns, 0, 0, {}, {}};
  matrix.panel_bytes = panel_bytes(matrix.type, matrix.columns);
  matrix.pair_stride = 2 * matrix.panel_bytes;
  const Memory panels(packed ? matrix.panel_bytes * matrix.panels() : 0);
  matrix.shares.push_back({panels.data(), 0, matrix.panels()});
  for (int p = 0; packed && p < matrix.panels(); p++) pack_panel(tensor, {}, p, matrix.panel(0, p));
  for (int r = 0; r < tensor.rows; r++) {
    if (packed) {
      unpack_row(matrix, r, out + columns * r);
    } else {
      dequantize_row(tensor.type, tensor.row(r), tensor.columns, out + columns * r);
    }
  }
  return nb::cast(nb::ndarray<nb::numpy, float>(out, {static_cast<size_t>(tensor.rows), columns}, owner));
}

using View = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::device::cpu>;

// A step's rows where they lie: what they hold changes with the next forward, and they stay readable after it.
View view(const Output& output) {
  using Owner = std::shared_ptr<const Memory>;
  static const float nothing = 0;
  const nb::capsule owner(new Owner(output.memory()), [](void* p) noexcept { delete static_cast<Owner*>(p); });
  const float* data = output.rows() ? output.row(0) : &nothing;
  return View(data, {output.rows(), output.columns()}, owner, {static_cast<int64_t>(output.stride()), 1});
}

// A model with the scratch of its steps. One thread at a time computes with it or changes it.
class Decoder {
 public:
  Decoder(Pool& pool, const std::string& instruction_set, int max_step_tokens, const std::string& cache,
          const Spec& spec, nb::dict tensors)
      : pool_(pool),
        model_(packed(spec, kernels(instruction_set), pool, raw_tensors(tensors), cache_type(cache))),
        step_(model_, pool.size(), max_step_tokens) {}

  void allocate(int num_blocks) {
    const Turn turn(busy_);
    model_.allocate(num_blocks);
  }

  void forward(Array<int32_t, 1> tokens, Array<int32_t, 1> positions, Array<int32_t, 1> slots,
               Array<int32_t, 1> parents, Array<int32_t, 1> run_starts, Array<int32_t, 2> block_table,
               Array<int32_t, 1> context_lens, Array<int32_t, 1> rows, Array<int32_t, 1> hidden_rows,
               std::optional<Array<int32_t, 1>> exits) {
    StepBatch batch;
    batch.num_tokens = static_cast<int>(tokens.size());
    batch.num_runs = static_cast<int>(context_lens.size());
    batch.max_blocks = static_cast<int>(block_table.shape(1));
    batch.num_rows = static_cast<int>(rows.size());
    batch.num_hidden = static_cast<int>(hidden_rows.size());
    if (positions.size() != tokens.size() || slots.size() != tokens.size() || parents.size() != tokens.size() ||
        run_starts.size() != context_lens.size() + 1 || block_table.shape(0) != context_lens.size()) {
      throw std::invalid_argument("malformed step: its arrays differ in length");
    }
    if (exits && exits->size() != rows.size()) {
      throw std::invalid_argument("malformed step: exits has " + std::to_string(exits->size()) +
                                  " elements and needs " + std::to_string(rows.size()) + ", one for each of rows");
    }
    batch.tokens = tokens.data();
    batch.positions = positions.data();
    batch.slots = slots.data();
    batch.parents = parents.data();
    batch.run_starts = run_starts.data();
    batch.block_table = block_table.data();
    batch.context_lens = context_lens.data();
    batch.rows = rows.data();
    batch.hidden_rows = hidden_rows.data();
    if (exits) batch.exits = exits->data();
    const Turn turn(busy_);
    nb::gil_scoped_release release;
    step_.plan(model_, batch);
    model_.extend_rotaries(step_.positions);
    pool_.run([&](int worker) { model_.kernels->forward(model_, step_, pool_, worker); });
  }

  void copy_slots(Array<int32_t, 2> pairs) {
    const Turn turn(busy_);
    const int num_slots = model_.cache.num_blocks * kBlock;
    if (pairs.shape(1) != 2) throw std::invalid_argument("slots to copy come in pairs, [N, 2]");
    for (size_t i = 0; i < pairs.size(); i++) {
      const int32_t slot = pairs.data()[i];
      if (slot < 0 || slot >= num_slots) {
        throw std::invalid_argument("slot " + std::to_string(slot) + " is not in the cache's 0 to " +
                                    std::to_string(num_slots - 1));
      }
    }
    nb::gil_scoped_release release;
    for (size_t i = 0; i < pairs.shape(0); i++) model_.cache.copy_slot(pairs.data()[2 * i], pairs.data()[2 * i + 1]);
  }

  // The logits where they lie: the same array as long as that is one place, as making it costs more than the call.
  nb::object logits() {
    const Output& now = step_.logits;
    if (!logits_.is_valid() || shown_.row(0) != now.row(0) || shown_.rows() != now.rows()) {
      logits_ = nb::cast(view(now));
      shown_ = now;
    }
    return logits_;
  }

  const Model& model() const { return model_; }
  const Step& step() const { return step_; }

 private:
  // Held while the decoder is in use. Taken and given back with the GIL; a second thread is refused rather than
  // made to wait, as the logits that it was about to read would be another step's.
  class Turn {
   public:
    explicit Turn(bool& busy) : busy_(busy) {
      if (busy) throw std::runtime_error("another thread is using this model; one step at a time");
      busy_ = true;
    }
    ~Turn() { busy_ = false; }
    Turn(const Turn&) = delete;

   private:
    bool& busy_;
  };

  static Model packed(const Spec& spec, const Kernels& kernels, Pool& pool,
                      const std::map<std::string, RawTensor>& tensors, CacheType cache) {
    nb::gil_scoped_release release;
    return Model(spec, kernels, pool, tensors, cache);
  }

  static std::map<std::string, RawTensor> raw_tensors(nb::dict tensors) {
    std::map<std::string, RawTensor> raw;
    for (auto [role, value] : tensors) {
      const auto name = nb::cast<std::string>(role);
      raw.emplace(name, raw_tensor(name, value));
    }
    return raw;
  }

  bool busy_ = false;
  Pool& pool_;
  Model model_;
  Step step_;
  nb::object logits_;  // the array that was last asked for
  Output shown_;       // what it shows; holds the memory, so that no other's address can be the same
};

// A switch that has names in Python, in the order of its values here.
template <class Choice>
void def_choice(nb::class_<Spec>& spec, const char* field, Choice Spec::*member, std::vector<std::string> names) {
  spec.def_prop_rw(
      field, [member, names](const Spec& s) { return names[static_cast<size_t>(s.*member)]; },
      [member, names, field](Spec& s, const std::string& name) {
        const auto found = std::find(names.begin(), names.end(), name);
        if (found == names.end()) {
          std::string allowed;
          for (const std::string& other : names) allowed += (allowed.empty() ? "" : ", ") + other;
          throw std::invalid_argument(std::string(field) + " is '" + name + "'; allowed are " + allowed);
        }
        s.*member = static_cast<Choice>(found - names.begin());
      });
}

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // where a program ends while a thread waits in here, what it holds is never let go
  m.attr("__doc__") = "unspool's kernels: the arithmetic of a step and of a row.";
  m.def("instruction_sets", &instruction_sets, "Instruction sets with kernels that run here, best first.");

  m.def("packed_type", [](int type) {
    if (!is_supported(type)) throw std::invalid_argument("type " + std::to_string(type) + " has no kernels");
    return static_cast<int>(packed_type(static_cast<TensorType>(type)));
  }, "type"_a, "The type whose kernels compute with tensors of a type.");
  m.def("values", [](nb::handle tensor, bool packed) { return values(raw_tensor("values", tensor), packed); },
        "tensor"_a, "packed"_a = false,
        "A tensor (type, rows, columns, bytes) as float32: as its file has it, or as kernels compute with it.");

  nb::class_<Pool>(m, "Pool", "Threads that compute steps together, the caller being the first.")
      .def(nb::init<int>(), "threads"_a)
      .def_prop_ro("threads", &Pool::size);

  m.def("read_bandwidth", &read_bandwidth, "pool"_a, "bytes_per_worker"_a, "repeats"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Bytes a second that all workers together read from memory, the best of some repeats.");

  nb::class_<LayerSpec>(m, "LayerSpec", "What differs between a decoder's layers.")
      .def(nb::init<int, int>(), "window"_a, "rotary"_a)
      .def_ro("window", &LayerSpec::window)
      .def_ro("rotary", &LayerSpec::rotary);

  nb::class_<RotarySpec>(m, "Rotary", "A rotary position embedding.")
      .def(nb::init<bool, std::vector<float>, float>(), "halves"_a, "inverse_frequencies"_a, "factor"_a)
      .def_ro("halves", &RotarySpec::halves)
      .def_ro("inverse_frequencies", &RotarySpec::inverse_frequencies)
      .def_ro("factor", &RotarySpec::factor);

  nb::class_<Spec> spec(m, "Spec", "The sizes and switches of a decoder.");
  def_choice(spec, "norm", &Spec::norm, {"rms", "layer"});
  def_choice(spec, "query_key_norm", &Spec::query_key_norm, {"none", "head", "whole"});
  def_choice(spec, "activation", &Spec::activation, {"silu", "gelu_tanh", "gelu"});
  spec.def(nb::init<>())
      .def_rw("vocab_size", &Spec::vocab_size)
      .def_rw("hidden_size", &Spec::hidden_size)
      .def_rw("intermediate_size", &Spec::intermediate_size)
      .def_rw("num_layers", &Spec::num_layers)
      .def_rw("num_heads", &Spec::num_heads)
      .def_rw("num_kv_heads", &Spec::num_kv_heads)
      .def_rw("head_dim", &Spec::head_dim)
      .def_rw("rotaries", &Spec::rotaries)
      .def_rw("norm_epsilon", &Spec::norm_epsilon)
      .def_rw("attention_scale", &Spec::attention_scale)
      .def_rw("attention_softcap", &Spec::attention_softcap)
      .def_rw("layers", &Spec::layers)
      .def_rw("norm_first", &Spec::norm_first)
      .def_rw("norm_after", &Spec::norm_after)
      .def_rw("gated", &Spec::gated)
      .def_rw("learned_positions", &Spec::learned_positions)
      .def_rw("parallel_residual", &Spec::parallel_residual)
      .def_rw("final_softcap", &Spec::final_softcap)
      .def_rw("embedding_scale", &Spec::embedding_scale)
      .def_rw("residual_scale", &Spec::residual_scale)
      .def_rw("logit_scale", &Spec::logit_scale);

  nb::class_<Decoder>(m, "Decoder", "A model's packed weights, its cache, and one step at a time.")
      .def(nb::init<Pool&, const std::string&, int, const std::string&, const Spec&, nb::dict>(), "pool"_a,
           "instruction_set"_a, "max_step_tokens"_a, "cache_type"_a, "spec"_a, "tensors"_a, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 7>())
      .def("allocate", &Decoder::allocate, "num_blocks"_a)
      // No conversions: an array of another type would be cut to fit in silence.
      .def("forward", &Decoder::forward, "tokens"_a.noconvert(), "positions"_a.noconvert(), "slots"_a.noconvert(),
           "parents"_a.noconvert(), "run_starts"_a.noconvert(), "block_table"_a.noconvert(),
           "context_lens"_a.noconvert(), "rows"_a.noconvert(), "hidden_rows"_a.noconvert(),
           "exits"_a.noconvert() = nb::none())
      .def("copy_slots", &Decoder::copy_slots, "pairs"_a.noconvert())
      .def("logits", &Decoder::logits)
      .def("hidden", [](const Decoder& d) { return view(d.step().hidden); })
      .def_prop_ro("packed_bytes", [](const Decoder& d) { return d.model().packed_bytes(); })
      .def_prop_ro("cache_bytes", [](const Decoder& d) { return d.model().cache.memory.size(); })
      .def_prop_ro("instruction_set", [](const Decoder& d) { return d.model().kernels->name; });

  bind_sample(m);
}

}  // namespace
}  // namespace unspool
