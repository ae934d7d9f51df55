// The hyperbolic tangent, of which soft caps are made.
#pragma once
// Included after exp.h.

namespace unspool::UNSPOOL_ISA {

// tanh(x), relative error below 3e-7; NaN for NaN. Cephes' tanhf: an odd polynomial of degree 11 up to 0.625, and
// 1 - 2 / (e^2|x| + 1) with x's sign beyond. Separate multiplications and additions, as exp.h has them, so that every
// instruction set gives the same bits.
static inline f32x16 tanh(f32x16 x) {
  const f32x16 size = abs(x), square = x * x, one = set(1.0f);
  f32x16 p = set(-5.70498872745e-3f) * square + set(2.06390887954e-2f);
  p = p * square + set(-5.37397155531e-2f);
  p = p * square + set(1.33314422036e-1f);
  p = p * square + set(-3.33332819422e-1f);
  const f32x16 near = p * square * x + x;
  // Beyond 10 it is 1 in float32. NaN is left to `near`, as it is not above anything.
  const f32x16 most = min(size, set(10.0f));
  const f32x16 far = one - set(2.0f) / (exp_in_range(most + most) + one);
  const f32x16 signed_far = select(x < zero(), zero() - far, far);
  return select(set(0.625f) < size, signed_far, near);
}

}  // namespace unspool::UNSPOOL_ISA
