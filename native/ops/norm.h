// Root mean square normalization (Zhang 2019).
#pragma once

namespace unspool::UNSPOOL_ISA {

// out[n] = x / sqrt(mean(x^2) + epsilon) * weight; n is a multiple of 16. The sum runs in 16 lanes, then in
// sum()'s fixed tree.
static inline void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out) {
  f32x16 squares = zero();
  for (int i = 0; i < n; i += 16) {
    const f32x16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  const f32x16 scale = set(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + epsilon));
  for (int i = 0; i < n; i += 16) store(out + i, load(x + i) * scale * load(weight + i));
}

}  // namespace unspool::UNSPOOL_ISA
