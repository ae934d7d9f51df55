// The kernels, compiled for avx2.
#define UNSPOOL_ISA avx2
#include "../simd/avx2.h"
// Above decides what follows means: the order of these lines matters.
#include "../forward.inl"
#include "../probe.inl"
#include "../sample.inl"

namespace unspool {
extern const Kernels avx2_kernels;
const Kernels avx2_kernels = {
    "avx2",
    avx2::kTile,
    avx2::forward,
    avx2::survey,
    avx2::weigh,
    avx2::sample,
    avx2::find_law,
    avx2::offer,
    avx2::read,
};
}  // namespace unspool
