#include "cache.h"

#include <new>

namespace unspool {

void Cache::allocate(int blocks) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(block_halves() * sizeof(uint16_t), static_cast<size_t>(blocks), &bytes)) {
    throw std::bad_alloc();
  }
  memory = Memory(bytes);
  num_blocks = blocks;
}

void Cache::copy_slot(int from, int to) {
  for (int layer = 0; layer < layers; layer++) {
    for (int h = 0; h < kv_heads; h++) {
      copy_head_slot(keys(from / kBlock, layer, h), from % kBlock, keys(to / kBlock, layer, h), to % kBlock, head_dim);
    }
  }
}

}  // namespace unspool
