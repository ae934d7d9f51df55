#include "cache.h"

#include <cstring>

namespace unspool {

void Cache::allocate(int blocks) {
  memory = Memory(block_halves() * blocks * sizeof(uint16_t));
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
