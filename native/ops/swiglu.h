// The gated activation of the feed-forward layer (Shazeer 2020).
#pragma once

namespace unspool::UNSPOOL_ISA {

// out[32 t] = silu(gate) * up = gate / (1 + exp(-gate)) * up, 16 values of each of n tokens.
static inline void swiglu(const float* gates, const float* ups, int n, float* out) {
  const auto activate = [&](int t, auto& e) {
    constexpr int count = sizeof e / sizeof e[0];
    for (int k = 0; k < count; k++) e[k] = zero() - load(gates + 16 * (t + k));
    exp(e);
    for (int k = 0; k < count; k++) {
      store(out + 32 * (t + k), load(gates + 16 * (t + k)) / (set(1.0f) + e[k]) * load(ups + 16 * (t + k)));
    }
  };
  f32x16 many[kExpVectors], one[1];
  int t = 0;
  for (; t + kExpVectors <= n; t += kExpVectors) activate(t, many);
  for (; t < n; t++) activate(t, one);
}

}  // namespace unspool::UNSPOOL_ISA
