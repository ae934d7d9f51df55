// Root mean square normalization (Zhang 2019).
#pragma once

namespace unspool::UNSPOOL_ISA {

// out[n] = x / sqrt(mean(x^2) + epsilon) * weight; n is a multiple of 16. The sum runs in 16 lanes, then in
// sum()'s fixed tree. A sum beyond float32 makes the row NaN: 1 / infinity would make it zeros, which look sound.
static inline void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out) {
  f32x16 squares = zero();
  for (int i = 0; i < n; i += 16) {
    const f32x16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  const float mean = sum(squares) / static_cast<float>(n);
  const f32x16 scale =
      set(mean < __builtin_inff() ? 1.0f / __builtin_sqrtf(mean + epsilon) : __builtin_nanf(""));
  for (int i = 0; i < n; i += 16) store(out + i, load(x + i) * scale * load(weight + i));
}

}  // namespace unspool::UNSPOOL_ISA
