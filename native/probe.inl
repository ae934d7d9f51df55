// Reads memory as fast as the kernels could: what bounds a step of few tokens. Included once per instruction set.
#include <cstddef>
#include <cstdint>

namespace unspool::UNSPOOL_ISA {

// A sum of the bytes' words, so that no read can be left out; bytes is a multiple of 256.
static int32_t read(const uint8_t* data, size_t bytes) {
  i32x16 totals[4] = {set_int(0), set_int(0), set_int(0), set_int(0)};
  for (size_t i = 0; i < bytes; i += 256) {
    for (int k = 0; k < 4; k++) {
      prefetch(data + i + 64 * k + kPrefetchBytes);
      totals[k] = totals[k] + load_int(reinterpret_cast<const int32_t*>(data + i + 64 * k));
    }
  }
  return sum_int((totals[0] + totals[1]) + (totals[2] + totals[3]));
}

}  // namespace unspool::UNSPOOL_ISA
