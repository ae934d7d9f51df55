// The activations of the feed-forward layer, gated (Shazeer 2020) or not. Separate multiplications and additions, as
// exp.h has them, so that every instruction set gives the same bits.
#pragma once
// Included after exp.h.

namespace unspool::UNSPOOL_ISA {

// Each is x times a factor of e^exponent(x).

// x / (1 + e^-x).
struct Silu {
  static inline f32x16 exponent(f32x16 x) { return zero() - x; }
  static inline f32x16 value(f32x16 x, f32x16 e) { return x / (set(1.0f) + e); }
};

// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3) (Hendrycks 2016), which is x / (1 + e^-2u).
struct GeluTanh {
  static inline f32x16 exponent(f32x16 x) {
    const f32x16 cube = x * x * x;
    return set(-1.5957691216057308f) * (x + set(0.044715f) * cube);
  }
  static inline f32x16 value(f32x16 x, f32x16 e) { return x / (set(1.0f) + e); }
};

// x / 2 * (1 + erf(x / sqrt(2))), which is x * (1 - tail) where x >= 0, else x * tail. The tail of the normal
// distribution beyond |x| is e^(-x^2 / 2) * t p(t) with t = 1 / (1 + 0.3 |x|); p, of degree 7, is fitted here to a
// relative error below 1.3e-7 for |x| <= 13.5, beyond which the tail is 0 in float32.
struct Gelu {
  static inline f32x16 exponent(f32x16 x) { return set(-0.5f) * x * x; }
  static inline f32x16 value(f32x16 x, f32x16 e) {
    const f32x16 t = set(1.0f) / (set(1.0f) + set(0.3f) * abs(x));
    f32x16 p = set(0.035932035f);
    p = p * t + set(-0.158277142f);
    p = p * t + set(0.208208395f);
    p = p * t + set(-0.0553953372f);
    p = p * t + set(0.129469911f);
    p = p * t + set(0.0996372998f);
    p = p * t + set(0.120798386f);
    p = p * t + set(0.119626388f);
    const f32x16 tail = e * (p * t);
    return x * select(x < zero(), tail, set(1.0f) - tail);
  }
};

// out[32 t] = activation(x) * up, 16 values of each of n tokens; `ups` may be none.
template <class Function>
static inline void activate_with(const float* x, const float* ups, int n, float* out) {
  const auto activate = [&](int t, auto& e) {
    constexpr int count = sizeof e / sizeof e[0];
    for (int k = 0; k < count; k++) e[k] = Function::exponent(load(x + 16 * (t + k)));
    exp(e);
    for (int k = 0; k < count; k++) {
      const f32x16 value = Function::value(load(x + 16 * (t + k)), e[k]);
      store(out + 32 * (t + k), ups ? value * load(ups + 16 * (t + k)) : value);
    }
  };
  f32x16 many[kExpVectors], one[1];
  int t = 0;
  for (; t + kExpVectors <= n; t += kExpVectors) activate(t, many);
  for (; t < n; t++) activate(t, one);
}

static inline void activate(Activation activation, const float* x, const float* ups, int n, float* out) {
  switch (activation) {
    case Activation::Silu:
      return activate_with<Silu>(x, ups, n, out);
    case Activation::GeluTanh:
      return activate_with<GeluTanh>(x, ups, n, out);
    case Activation::Gelu:
      return activate_with<Gelu>(x, ups, n, out);
  }
}

}  // namespace unspool::UNSPOOL_ISA
