// One panel of 16 output rows times a tile of up to kTile tokens: the kernels that everything waits for.
//
// Within a group of 32 the products add up exactly in int32, in whatever order. Over groups one chain of
// fused multiply-adds runs in the groups' order, the same for every tile size and instruction set: that is
// why a row's result does not depend on what else is in the batch.
#pragma once

namespace unspool::UNSPOOL_ISA {

// A tile's inputs: pointers to its first place in Activations (quantized), or to its first row (floats).
struct TileInput {
  const int8_t* codes;
  const float* scales;
  const float* offsets;
  const int32_t* sums;
  const float* floats;
  int float_stride;
};

// How far ahead of its use a panel is fetched: measured, and worth a fifth of the speed of small batches.
constexpr size_t kPrefetchBytes = 8192;

static inline void prefetch_group(const uint8_t* panel, size_t group_bytes, int g) {
  const uint8_t* ahead = panel + kPrefetchBytes + group_bytes * g;
  for (size_t line = 0; line < group_bytes; line += 64) prefetch(ahead + line);
}

// What differs between the formats: where scales and quants lie, and one group's int32 sums for T tokens.
struct FormatQ4 {
  static constexpr size_t kQuantBytes = 256;
  template <int T>
  static inline void dot_group(const uint8_t* quants, const int8_t* codes, i32x16* acc) {
    for (int j = 0; j < 4; j++) {
      const u8x64 both = load_weights(quants + 64 * j);
      const u8x64 lo = low_nibbles(both), hi = high_nibbles(both);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) {
        acc[t] = dot(acc[t], lo, codes + 32 * t + 4 * j);
        acc[t] = dot(acc[t], hi, codes + 32 * t + 16 + 4 * j);
      }
    }
  }
};

struct FormatQ4_1 : FormatQ4 {
  static constexpr size_t kScaleBytes = 64;
  static constexpr bool kHasMinimum = true;
  static inline i32x16 start(int32_t) { return set_int(0); }
};

struct FormatQ4_0 : FormatQ4 {
  static constexpr size_t kScaleBytes = 32;
  static constexpr bool kHasMinimum = false;
  static inline i32x16 start(int32_t sum) { return set_int(-8 * sum); }  // sum (q - 8) a = sum q a - 8 sum a
};

struct FormatQ8_0 {
  static constexpr size_t kScaleBytes = 32;
  static constexpr size_t kQuantBytes = 512;
  static constexpr bool kHasMinimum = false;
  static inline i32x16 start(int32_t sum) { return start_signed(sum); }
  template <int T>
  static inline void dot_group(const uint8_t* quants, const int8_t* codes, i32x16* acc) {
    for (int j = 0; j < 8; j++) {
      const u8x64 w = load_weights(quants + 64 * j);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) acc[t] = dot_signed(acc[t], w, codes + 32 * t + 4 * j);
    }
  }
};

// out[t][16] = panel * token t, for T tokens.
template <class Format, int T, bool kPrefetch>
static void multiply_quantized(const uint8_t* panel, int groups, const TileInput& in, float* out) {
  const uint8_t* scales = panel;
  const uint8_t* quants = panel + (Format::kScaleBytes * groups + 63) / 64 * 64;
  f32x16 total[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; t++) total[t] = zero();
  for (int g = 0; g < groups; g++) {
    if (kPrefetch) prefetch_group(panel, Format::kScaleBytes + Format::kQuantBytes, g);
    const size_t at = static_cast<size_t>(g) * T;
    i32x16 acc[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) acc[t] = Format::start(in.sums[at + t]);
    Format::template dot_group<T>(quants + Format::kQuantBytes * g, in.codes + 32 * at, acc);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(scales + Format::kScaleBytes * g);
    const f32x16 d = load_half(halves);
#pragma GCC unroll 16
    for (int t = 0; t < T; t++) total[t] = fma(to_float(acc[t]), d * set(in.scales[at + t]), total[t]);
    if (Format::kHasMinimum) {
      const f32x16 m = load_half(halves + 16);
#pragma GCC unroll 16
      for (int t = 0; t < T; t++) total[t] = fma(m, set(in.offsets[at + t]), total[t]);
    }
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
template <class Format, int T, bool kPrefetch>
static void multiply_floats(const uint8_t* panel, int columns, const TileInput& in, float* out) {
  if constexpr (T > kFloatTile) {
    TileInput rest = in;
    rest.floats += static_cast<size_t>(kFloatTile) * in.float_stride;
    multiply_floats<Format, kFloatTile, kPrefetch>(panel, columns, in, out);
    multiply_floats<Format, T - kFloatTile, false>(panel, columns, rest, out + 16 * kFloatTile);
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
      if (kPrefetch) prefetch_group(panel, 4 * 16 * sizeof(typename Format::Word), k / 4);
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) step(k + c, c);
    }
    for (int c = 0; k + c < columns; c++) step(k + c, c);
    for (int t = 0; t < T; t++) store(out + 16 * t, (chain[t][0] + chain[t][1]) + (chain[t][2] + chain[t][3]));
  }
}

using TileKernel = void (*)(const uint8_t* panel, int size, const TileInput& in, float* out);

// Kernels by format, tokens in the tile, and whether the panel is fetched ahead (a tile that comes second
// to a panel finds it in the first-level cache).
template <template <int, bool> class Make, int T = kTile>
struct KernelTable {
  static TileKernel find(int tokens, bool ahead) {
    if (tokens == T) return ahead ? Make<T, true>::run : Make<T, false>::run;
    if constexpr (T > 1) return KernelTable<Make, T - 1>::find(tokens, ahead);
    return nullptr;
  }
};

template <class Format>
struct Quantized {
  template <int T, bool kPrefetch>
  struct Make {
    static void run(const uint8_t* panel, int size, const TileInput& in, float* out) {
      multiply_quantized<Format, T, kPrefetch>(panel, size, in, out);
    }
  };
};

template <class Format>
struct Floats {
  template <int T, bool kPrefetch>
  struct Make {
    static void run(const uint8_t* panel, int size, const TileInput& in, float* out) {
      multiply_floats<Format, T, kPrefetch>(panel, size, in, out);
    }
  };
};

static TileKernel find_kernel(TensorType type, int tokens, bool ahead) {
  switch (type) {
    case TensorType::Q4_0:
      return KernelTable<Quantized<FormatQ4_0>::template Make>::find(tokens, ahead);
    case TensorType::Q4_1:
      return KernelTable<Quantized<FormatQ4_1>::template Make>::find(tokens, ahead);
    case TensorType::Q8_0:
      return KernelTable<Quantized<FormatQ8_0>::template Make>::find(tokens, ahead);
    case TensorType::F32:
      return KernelTable<Floats<FormatF32>::template Make>::find(tokens, ahead);
    case TensorType::F16:
      return KernelTable<Floats<FormatF16>::template Make>::find(tokens, ahead);
    case TensorType::BF16:
      return KernelTable<Floats<FormatBF16>::template Make>::find(tokens, ahead);
  }
  return nullptr;
}

// The kernels that one matrix needs for one tiling: its tiles have at most two sizes.
struct Multiplier {
  const Activations* input;
  Tiling tiling;
  int size;       // groups, or columns
  int small;      // the smaller of the two tile sizes
  TileKernel kernel[2][2];  // [tile size - small][ahead]

  Multiplier(const Matrix& matrix, const Activations& input, const Tiling& tiling)
      : input(&input), tiling(tiling), size(is_quantized(matrix.type) ? matrix.groups() : matrix.columns),
        small(tiling.tokens / tiling.tiles) {
    for (int more = 0; more < 2; more++) {
      for (int ahead = 0; ahead < 2; ahead++) kernel[more][ahead] = find_kernel(matrix.type, small + more, ahead);
    }
  }

  // out[t][16] for the tokens of tile i; `ahead` fetches what follows the panel.
  inline void operator()(const uint8_t* panel, int i, bool ahead, float* out) const {
    const int start = tiling.start(i), tokens = tiling.start(i + 1) - start;
    const size_t place = input->place(start);
    const TileInput in{input->codes + 32 * place, input->scales + place, input->offsets + place,
                       input->sums + place, input->floats + static_cast<size_t>(start) * input->columns,
                       input->columns};
    kernel[tokens - small][ahead](panel, size, in, out);
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
