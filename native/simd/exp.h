// The project's one exponential.
#pragma once
// Included after one of avx512.h, avx2.h, portable.h.

namespace unspool::UNSPOOL_ISA {

// 2^kPower e^x for x in -87..88, relative error below 2e-7, of N vectors side by side: each step waits for the
// one before it, and a processor's window is too short to find the next vector by itself.
// Separate multiplications and additions only (the build forbids contraction), so that NumPy's float32
// and every instruction set give the same bits: unspool.sampling.distribution.exp is the twin.
// Method: x = n log 2 + r with |r| <= log(2) / 2, Cephes' polynomial of degree 7 in r (its expf) taken by
// Estrin's scheme, whose steps wait less for each other than Horner's, and n + kPower added to the exponent's
// bits. A float just above 2^23 counts in ones: adding 1.5 * 2^23 rounds to an integer, ties to even, and
// leaves it in the lowest bits.
template <int kPower = 0, int N>
static inline void exp_in_range(f32x16 (&x)[N]) {
  f32x16 shifted[N], r[N], square[N], p[N];
  const auto each = [](const auto& step) {
    for (int i = 0; i < N; i++) step(i);
  };
  const f32x16 shifter = set(0x1.8p23f + kPower);
  each([&](int i) { shifted[i] = x[i] * set(1.44269504088896341f) + shifter; });
  each([&](int i) {
    const f32x16 n = shifted[i] - shifter;
    r[i] = (x[i] - n * set(0.693359375f)) - n * set(-2.12194440e-4f);
  });
  each([&](int i) { square[i] = r[i] * r[i]; });
  each([&](int i) {
    const f32x16 high = set(1.9875691500e-4f) * r[i] + set(1.3981999507e-3f);
    const f32x16 middle = set(8.3334519073e-3f) * r[i] + set(4.1665795894e-2f);
    p[i] = high * square[i] + middle;
  });
  each([&](int i) { p[i] = p[i] * square[i] + (set(1.6666665459e-1f) * r[i] + set(5.0000001201e-1f)); });
  each([&](int i) { p[i] = p[i] * square[i] + (r[i] + set(1.0f)); });
  each([&](int i) { x[i] = as_float(as_int(p[i]) + shift_left<23>(as_int(shifted[i]))); });
}

static inline f32x16 exp_in_range(f32x16 x) {
  f32x16 one[1] = {x};
  exp_in_range(one);
  return one[0];
}

// e^x for x <= 88, of N vectors side by side; exactly 0 below -87, NaN for NaN.
template <int N>
static inline void exp(f32x16 (&x)[N]) {
  const f32x16 lowest = set(-87.0f);
  f32x16 within[N];
  for (int i = 0; i < N; i++) within[i] = max(min(x[i], set(88.0f)), lowest);
  exp_in_range(within);
  // NaN compares false both ways.
  for (int i = 0; i < N; i++) x[i] = select(x[i] >= lowest, within[i], select(x[i] < lowest, zero(), x[i]));
}

static inline f32x16 exp(f32x16 x) {
  f32x16 one[1] = {x};
  exp(one);
  return one[0];
}

}  // namespace unspool::UNSPOOL_ISA
