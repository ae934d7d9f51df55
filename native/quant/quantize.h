// float32 to int8 in groups of 32, within one token's row and never across tokens.
#pragma once

namespace unspool::UNSPOOL_ISA {

// 127 divided by less may be beyond float32.
constexpr float kTiny = 0x1p-120f;

// A group of codes 0: what it is multiplied with comes to 0, or to NaN where the scale is that.
static inline void put_zeros(float scale, const Activations& a, size_t at) {
  __builtin_memset(a.codes + 32 * at, 0, 32);
  a.scales[at] = a.offsets[at] = scale;
  a.sums[at] = a.first_sums[at] = 0;
}

// One group x[32] to place `at`. The scale is max |x| / 127; codes round to nearest, ties to even. What holds
// NaN or infinity gives NaN, so that such a row is seen to be broken; what is below kTiny, 0.
static inline void quantize_group(const float* x, const Activations& a, size_t at) {
  const f32x16 lo = load(x), hi = load(x + 16);
  const f32x16 size_lo = abs(lo), size_hi = abs(hi), infinity = set(__builtin_inff());
  if (bits((size_lo < infinity) & (size_hi < infinity)) != 0xffff) return put_zeros(__builtin_nanf(""), a, at);
  const float largest = max_of(max(size_lo, size_hi));
  if (largest < kTiny) return put_zeros(0.0f, a, at);
  const f32x16 inverse = set(127.0f / largest);
  const i32x16 q_lo = to_int(lo * inverse), q_hi = to_int(hi * inverse);
  store_bytes(a.codes + 32 * at, q_lo);
  store_bytes(a.codes + 32 * at + 16, q_hi);
  const int32_t total = sum_int(q_lo + q_hi);
  const float scale = largest * (1.0f / 127.0f);
  a.scales[at] = scale;
  a.offsets[at] = scale * static_cast<float>(total);
  a.sums[at] = total;
  a.first_sums[at] = sum_int(q_lo);
}

// What quantize_group rounded away of x[32].
static inline void rounding_residue(const float* x, const Activations& a, size_t at, float* residue) {
  const f32x16 scale = set(-a.scales[at]);
  store(residue, fma(to_float(load_bytes(a.codes + 32 * at)), scale, load(x)));
  store(residue + 16, fma(to_float(load_bytes(a.codes + 32 * at + 16)), scale, load(x + 16)));
}

// Token t's whole row x[columns] to `coarse`, and what that rounds away to `fine`, where it has room.
static inline void quantize_row(const float* x, const Activations& coarse, const Activations* fine,
                                const Tiling& tiling, int t) {
  const int tile = tiling.tile_of(t), start = tiling.start(tile), size = tiling.start(tile + 1) - start;
  const size_t first = coarse.place(start) + (t - start);
  for (int g = 0; g < coarse.groups(); g++) {
    const size_t at = first + static_cast<size_t>(g) * size;
    quantize_group(x + 32 * g, coarse, at);
    if (!fine) continue;
    alignas(64) float residue[32];
    rounding_residue(x + 32 * g, coarse, at, residue);
    quantize_group(residue, *fine, at);
  }
}

}  // namespace unspool::UNSPOOL_ISA
