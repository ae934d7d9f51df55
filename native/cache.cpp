#include "cache.h"

#include <cstring>
#include <new>
#include <stdexcept>

namespace unspool {

CacheType cache_type(const std::string& name) {
  if (name == "float16") return CacheType::Float16;
  if (name == "bfloat16") return CacheType::BFloat16;
  if (name == "float32") return CacheType::Float32;
  if (name == "int8") return CacheType::Int8;
  throw std::invalid_argument("cache type '" + name + "' is none of float16, bfloat16, float32, int8");
}

// One slot's place of each of `bytes / Granule` rows of 16 slots.
template <size_t Granule>
static void copy_column(const uint8_t* from, int from_slot, uint8_t* to, int to_slot, size_t bytes) {
  for (size_t at = 0; at < bytes; at += Granule) {
    std::memcpy(to + kBlock * at + Granule * to_slot, from + kBlock * at + Granule * from_slot, Granule);
  }
}

void HeadLayout::copy_slot(const uint8_t* from, int from_slot, uint8_t* to, int to_slot) const {
  const size_t bytes = vector_bytes();
  (element_bytes() == 2 ? copy_column<2> : copy_column<4>)(from, from_slot, to, to_slot, bytes);
  std::memcpy(to + values_at() + bytes * to_slot, from + values_at() + bytes * from_slot, bytes);
  if (!scaled()) return;
  for (const size_t scales : {key_scales_at(), value_scales_at()}) {
    std::memcpy(to + scales + 2 * to_slot, from + scales + 2 * from_slot, 2);
  }
}

void Cache::allocate(int blocks) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(block_bytes(), static_cast<size_t>(blocks), &bytes)) throw std::bad_alloc();
  memory = Memory(bytes);
  num_blocks = blocks;
}

void Cache::copy_slot(int from, int to) {
  for (int layer = 0; layer < layers; layer++) {
    for (int h = 0; h < kv_heads; h++) {
      layout.copy_slot(head(from / kBlock, layer, h), from % kBlock, head(to / kBlock, layer, h), to % kBlock);
    }
  }
}

}  // namespace unspool
