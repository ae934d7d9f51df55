// The kernels, compiled for avxvnni.
#define UNSPOOL_ISA avxvnni
#define UNSPOOL_AVX_VNNI 1
#include "../simd/avx2.h"
// Above decides what follows means: the order of these lines matters.
#include "../forward.inl"
#include "../probe.inl"
#include "../sample.inl"

namespace unspool {
extern const Kernels avxvnni_kernels;
const Kernels avxvnni_kernels = {
    "avxvnni",
    avxvnni::kTile,
    avxvnni::forward,
    avxvnni::survey,
    avxvnni::weigh,
    avxvnni::sample,
    avxvnni::find_law,
    avxvnni::offer,
    avxvnni::read,
};
}  // namespace unspool
