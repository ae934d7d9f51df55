// The kernels, compiled for avx512.
#define UNSPOOL_ISA avx512
#include "../simd/avx512.h"
// Above decides what follows means: the order of these lines matters.
#include "../forward.inl"
#include "../probe.inl"
#include "../sample.inl"

namespace unspool {
extern const Kernels avx512_kernels;
const Kernels avx512_kernels = {
    "avx512",
    avx512::kTile,
    avx512::forward,
    avx512::survey,
    avx512::weigh,
    avx512::sample,
    avx512::find_law,
    avx512::offer,
    avx512::read,
};
}  // namespace unspool
