// The kernels, compiled for portable.
#define UNSPOOL_ISA portable
#include "../simd/portable.h"
// Above decides what follows means: the order of these lines matters.
#include "../forward.inl"
#include "../probe.inl"
#include "../sample.inl"

namespace unspool {
extern const Kernels portable_kernels;
const Kernels portable_kernels = {
    "portable",
    portable::kTile,
    portable::forward,
    portable::survey,
    portable::weigh,
    portable::sample,
    portable::find_law,
    portable::offer,
    portable::read,
};
}  // namespace unspool
