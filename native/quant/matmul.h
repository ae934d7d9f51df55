// One panel of 16 output rows times a tile of up to kTile tokens: the kernels that everything waits for.
//
// Within a group of 32 the products add up exactly in int32, in whatever order. Over groups one chain of
// fused multiply-adds runs in the groups' order, the same for every tile size and instruction set: that is
// why a row's result does not depend on what else is in the batch.
#pragma once
#include <type_traits>
#include <utility>

namespace unspool::UNSPOOL_ISA {

// A tile's inputs: pointers to its first place in Activations (quantized), or to its first row (floats).
struct TileInput {
  const int8_t* codes;
  const float* scales;
  const float* offsets;
  const int32_t* sums;
  const int32_t* first_sums;
  const float* floats;
  int float_stride;
};

// How far ahead of its use a panel is fetched: measured, and worth a fifth of the speed of small batches.
constexpr size_t kPrefetchBytes = 8192;

static inline void prefetch_group(const uint8_t* panel, size_t group_bytes, int g) {
  const uint8_t* ahead = panel + kPrefetchBytes + group_bytes * g;
  for (size_t line = 0; line < group_bytes; line += 64) prefetch(ahead + line);
}

// Codes of inputs 4 j to 4 j + 3, of the group's first 16 or of its last.
template <int kBits, int kHalf, int kJ>
static inline u8x64 load_codes(const uint8_t* group) {
  if constexpr (kBits == 8) {
    return load_weights(group + 64 * (4 * kHalf + kJ));
  } else {
    const u8x64 both = load_weights(group + 64 * kJ);
    const u8x64 low = kHalf ? high_nibbles(both) : low_nibbles(both);
    if constexpr (kBits == 5) return insert_bits<4 - (4 * kHalf + kJ), 0x10>(low, load_weights(group + 256));
    if constexpr (kBits == 6) return insert_bits<4 - 2 * kJ, 0x30>(low, load_weights(group + 256 + 64 * kHalf));
    return low;
  }
}

// A call of f with each of 0 to n - 1 as a constant.
template <int n, class F>
static inline __attribute__((always_inline)) void unroll(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

// One part of a group: acc[t] += codes * token t, exact. A whole group takes its halves in turn, as they share bytes.
template <TensorType kType, int kPart, int T>
static inline __attribute__((always_inline)) void dot_part(const uint8_t* group, const int8_t* tokens, i32x16* acc) {
  constexpr PackedFormat format = packed_format(kType);
  constexpr int kDots = 8 / format.parts;
  constexpr int kRun = format.bits == 8 ? 1 : products_that_fit(format.bits) < kDots ? products_that_fit(format.bits) : kDots;
  unroll<kDots / kRun>([&](auto run) {
    products sums[T];
    if constexpr (format.bits < 8) {
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) sums[t] = start_products(acc[t]);
    }
    unroll<kRun>([&](auto step) {
      constexpr int i = kRun * run + step;
      constexpr int kHalf = format.parts == 2 ? kPart : i % 2, kJ = format.parts == 2 ? i : i / 2;
      const u8x64 w = load_codes<format.bits, kHalf, kJ>(group);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        const int8_t* a = tokens + 32 * t + 16 * kHalf + 4 * kJ;
        if constexpr (format.bits == 8) {
          acc[t] = dot_signed(acc[t], w, a);
        } else {
          sums[t] = add_products(sums[t], w, a);
        }
      }
    });
    if constexpr (format.bits < 8) {
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) acc[t] = take_products(acc[t], sums[t]);
    }
  });
}

// out[t][16] = panel * token t, for T tokens. `ahead` fetches what follows the panel (a tile that comes second to a
// panel finds it in the first-level cache).
template <TensorType kType, int T>
static void multiply_quantized(const uint8_t* panel, int groups, bool ahead, const TileInput& in, float* out) {
  constexpr PackedFormat format = packed_format(kType);
  constexpr size_t kGroupBytes = format.super_bytes() / (kSuper / kGroup) + format.scale_bytes() + format.code_bytes();
  const PanelLayout layout(format, groups);
  f32x16 total[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++) total[t] = zero();
  for (int g = 0; g < groups; g++) {
    if (ahead) prefetch_group(panel, kGroupBytes, g);
    const size_t at = static_cast<size_t>(g) * T;
    const uint8_t* super = panel + format.super_bytes() * (g / (kSuper / kGroup));
    const uint8_t* scales = panel + layout.scales + format.scale_bytes() * g;
    const uint8_t* codes = panel + layout.codes + format.code_bytes() * g;
    const auto halves = [](const uint8_t* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); };
    const auto bytes = [](const uint8_t* p) { return to_float(load_bytes(reinterpret_cast<const int8_t*>(p))); };
    unroll<format.parts>([&](auto part) {
      const auto sum = [&](int t) {
        return format.parts == 1 ? in.sums[at + t]
               : part == 0       ? in.first_sums[at + t]
                                 : in.sums[at + t] - in.first_sums[at + t];
      };
      i32x16 acc[T];
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        acc[t] = format.bits == 8 ? start_signed(sum(t)) : format.zero ? set_int(-format.zero * sum(t)) : set_int(0);
      }
      dot_part<kType, part, T>(codes, in.codes + 32 * at, acc);
      const f32x16 d = format.super ? halves(super) * bytes(scales + 16 * part) : halves(scales);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) total[t] = fma(to_float(acc[t]), d * set(in.scales[at + t]), total[t]);
      if constexpr (format.minimum) {
        const f32x16 m = format.super ? halves(super + 32) * bytes(scales + 16 * (format.parts + part))
                                      : halves(scales + 32);
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
          const float offset = format.parts == 1 ? in.offsets[at + t] : in.scales[at + t] * static_cast<float>(sum(t));
          total[t] = fma(m, set(offset), total[t]);
        }
      }
    });
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; t++) store(out + 16 * t, total[t]);
}

struct FormatF32 {
  using Word = float;
  static inline f32x16 load_row(const Word* p) { return load(p); }
};
struct FormatF16 {
  using Word = uint16_t;
  static inline f32x16 load_row(const Word* p) { return load_half(p); }
};
struct FormatBF16 {
  using Word = uint16_t;
  static inline f32x16 load_row(const Word* p) { return load_bfloat(p); }
};

// The same for float weights: four chains (input index modulo 4), added in pairs at the end. A tile larger
// than the registers hold is done in parts.
template <class Format, int T>
static void multiply_floats(const uint8_t* panel, int columns, bool ahead, const TileInput& in, float* out) {
  if constexpr (T > kFloatTile) {
    TileInput rest = in;
    rest.floats += static_cast<size_t>(kFloatTile) * in.float_stride;
    multiply_floats<Format, kFloatTile>(panel, columns, ahead, in, out);
    multiply_floats<Format, T - kFloatTile>(panel, columns, false, rest, out + 16 * kFloatTile);
    return;
  } else {
    const auto* weights = reinterpret_cast<const typename Format::Word*>(panel);
    f32x16 chain[T][4];
    for (int t = 0; t < T; t++) {
      for (int c = 0; c < 4; c++) chain[t][c] = zero();
    }
    const auto step = [&](int k, int c) {
      const f32x16 w = Format::load_row(weights + static_cast<size_t>(16) * k);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        chain[t][c] = fma(w, set(in.floats[static_cast<size_t>(t) * in.float_stride + k]), chain[t][c]);
      }
    };
    int k = 0;
    for (; k + 4 <= columns; k += 4) {
      if (ahead) prefetch_group(panel, 4 * 16 * sizeof(typename Format::Word), k / 4);
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) step(k + c, c);
    }
    for (int c = 0; k + c < columns; c++) step(k + c, c);
    for (int t = 0; t < T; t++) store(out + 16 * t, (chain[t][0] + chain[t][1]) + (chain[t][2] + chain[t][3]));
  }
}

using TileKernel = void (*)(const uint8_t* panel, int size, bool ahead, const TileInput& in, float* out);

// The kernel for a number of tokens.
template <template <int> class Make, int T = kTile>
struct KernelTable {
  static TileKernel find(int tokens) {
    if (tokens == T) return Make<T>::run;
    if constexpr (T > 1) return KernelTable<Make, T - 1>::find(tokens);
    return nullptr;
  }
};

template <TensorType kType>
struct Quantized {
  template <int T>
  struct Make {
    static constexpr TileKernel run = multiply_quantized<kType, T>;
  };
};

template <class Format>
struct Floats {
  template <int T>
  struct Make {
    static constexpr TileKernel run = multiply_floats<Format, T>;
  };
};

// Of a packed type.
static TileKernel find_kernel(TensorType type, int tokens) {
  switch (type) {
    case TensorType::Q4_0:
      return KernelTable<Quantized<TensorType::Q4_0>::template Make>::find(tokens);
    case TensorType::Q4_1:
      return KernelTable<Quantized<TensorType::Q4_1>::template Make>::find(tokens);
    case TensorType::Q5_0:
      return KernelTable<Quantized<TensorType::Q5_0>::template Make>::find(tokens);
    case TensorType::Q5_1:
      return KernelTable<Quantized<TensorType::Q5_1>::template Make>::find(tokens);
    case TensorType::Q8_0:
      return KernelTable<Quantized<TensorType::Q8_0>::template Make>::find(tokens);
    case TensorType::Q2_K:
      return KernelTable<Quantized<TensorType::Q2_K>::template Make>::find(tokens);
    case TensorType::Q4_K:
      return KernelTable<Quantized<TensorType::Q4_K>::template Make>::find(tokens);
    case TensorType::Q5_K:
      return KernelTable<Quantized<TensorType::Q5_K>::template Make>::find(tokens);
    case TensorType::Q6_K:
      return KernelTable<Quantized<TensorType::Q6_K>::template Make>::find(tokens);
    case TensorType::F32:
      return KernelTable<Floats<FormatF32>::template Make>::find(tokens);
    case TensorType::F16:
      return KernelTable<Floats<FormatF16>::template Make>::find(tokens);
    case TensorType::BF16:
      return KernelTable<Floats<FormatBF16>::template Make>::find(tokens);
    default:  // packed as another
      return nullptr;
  }
}

// The kernels that one matrix needs for one tiling: its tiles have at most two sizes.
struct Multiplier {
  const Activations* input;
  Tiling tiling;
  int size;       // groups, or columns
  int small;      // the smaller of the two tile sizes
  TileKernel kernel[2];  // [tile size - small]

  Multiplier(const Matrix& matrix, const Activations& input, const Tiling& tiling)
      : input(&input), tiling(tiling), size(is_quantized(matrix.type) ? matrix.groups() : matrix.columns),
        small(tiling.tokens / tiling.tiles) {
    for (int more = 0; more < 2; more++) kernel[more] = find_kernel(matrix.type, small + more);
  }

  // out[t][16] for the tokens of tile i; `ahead` fetches what follows the panel.
  inline void operator()(const uint8_t* panel, int i, bool ahead, float* out) const {
    const int start = tiling.start(i), tokens = tiling.start(i + 1) - start;
    const size_t place = input->place(start);
    const TileInput in{input->codes + 32 * place, input->scales + place, input->offsets + place,
                       input->sums + place, input->first_sums + place,
                       input->floats + static_cast<size_t>(start) * input->columns, input->columns};
    kernel[tokens - small](panel, size, ahead, in, out);
  }
};

// Tiles that all panels pass over before the next ones: their inputs and outputs stay in the second-level cache,
// and the panels, which come again for the next span, are few beside them.
constexpr int kSpanTokens = 256;

template <class Span>
static inline void for_each_span(const Tiling& tiling, const Span& span) {
  constexpr int kTiles = kSpanTokens / kTile;
  for (int first = 0; first < tiling.tiles; first += kTiles) {
    span(first, first + kTiles < tiling.tiles ? first + kTiles : tiling.tiles);
  }
}

// A matrix's bias to what one of its panels gave for some tokens, out[token][16].
static inline void add_bias(const Matrix& matrix, int panel, int tokens, float* out) {
  if (matrix.bias.empty()) return;
  const f32x16 bias = load(matrix.bias.data() + static_cast<size_t>(16) * panel);
  for (int k = 0; k < 16 * tokens; k += 16) store(out + k, load(out + k) + bias);
}

// Multiplies every panel of the worker's share with every tile and adds the bias; finish(panel, first token,
// tokens, out) takes each result out[token][16] while it is in the first-level cache. Where the input has a fine
// part, its product is added: the rounding of the input to int8 is then all but undone.
template <class Finish>
static inline void multiply(const Matrix& matrix, int worker, const Activations& input, const Activations* fine,
                            const Tiling& tiling, const Finish& finish) {
  alignas(64) float out[kTile * 16], rest[kTile * 16];
  const Multiplier product(matrix, input, tiling), fine_product(matrix, fine ? *fine : input, tiling);
  const Share& share = matrix.shares[worker];
  for_each_span(tiling, [&](int first_tile, int last_tile) {
    for (int i = 0; i < share.count; i++) {
      const uint8_t* panel = matrix.panel(worker, i);
      for (int tile = first_tile; tile < last_tile; tile++) {
        const int start = tiling.start(tile), tokens = tiling.start(tile + 1) - start;
        product(panel, tile, tile == first_tile, out);
        if (fine) {
          fine_product(panel, tile, false, rest);
          for (int k = 0; k < 16 * tokens; k += 16) store(out + k, load(out + k) + load(rest + k));
        }
        add_bias(matrix, share.first + i, tokens, out);
        finish(share.first + i, start, tokens, out);
      }
    }
  });
}

}  // namespace unspool::UNSPOOL_ISA
