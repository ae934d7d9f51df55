// Root mean square normalization (Zhang 2019) and layer normalization (Ba 2016). Vectors are multiples of 16 long. Sums
// run in 16 lanes, then in sum()'s fixed tree.
#pragma once

namespace unspool::UNSPOOL_ISA {

static inline f32x16 add_squares(const float* x, int n, f32x16 center, f32x16 squares) {
  for (int i = 0; i < n; i += 16) {
    const f32x16 v = load(x + i) - center;
    squares = fma(v, v, squares);
  }
  return squares;
}

// 1 / sqrt(mean + epsilon), of n squares. A sum beyond float32 makes the row NaN: 1 / infinity would make it zeros,
// which look sound.
static inline f32x16 inverse_root(f32x16 squares, int n, float epsilon) {
  const float mean = sum(squares) / static_cast<float>(n);
  return set(mean < __builtin_inff() ? 1.0f / __builtin_sqrtf(mean + epsilon) : __builtin_nanf(""));
}

// out[n] = (x - center) / sqrt(mean((x - center)^2) + epsilon) * weight + bias, where the center is 0, or for a layer
// norm the mean.
static inline void normalize(NormKind kind, const Norm& norm, const float* x, int n, float epsilon, float* out) {
  f32x16 center = zero();
  if (kind == NormKind::Layer) {
    f32x16 total = zero();
    for (int i = 0; i < n; i += 16) total = total + load(x + i);
    center = set(sum(total) / static_cast<float>(n));
  }
  const f32x16 scale = inverse_root(add_squares(x, n, center, zero()), n, epsilon);
  const float* weight = norm.weight.data();
  for (int i = 0; i < n; i += 16) store(out + i, (load(x + i) - center) * scale * load(weight + i));
  if (norm.bias.empty()) return;
  for (int i = 0; i < n; i += 16) store(out + i, load(out + i) + load(norm.bias.data() + i));
}

}  // namespace unspool::UNSPOOL_ISA
