// The paged key-value cache: blocks of 16 token slots, each with every layer's keys and values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "memory.h"

namespace unspool {

constexpr int kBlock = 16;

// What keys and values are kept in. Int8: codes in -127..127 times a half, one for each token, head and of the two.
enum class CacheType : int { Float16, BFloat16, Float32, Int8 };

// By name: float16, bfloat16, float32, int8. Throws std::invalid_argument, saying what there is.
CacheType cache_type(const std::string& name);

// One head's part of a block: [keys: head_dim x 16 slots | values: 16 slots x head_dim], so that scores of 16
// positions are lanes of one register, and so are 16 dimensions of a value. Int8 keys are [head_dim / 4][16 slots][4],
// each code with its sign bit flipped, as the dot products take them; [16] scales of keys and [16] of values come last.
struct HeadLayout {
  CacheType type = CacheType::Float16;
  int head_dim = 0;

  bool scaled() const { return type == CacheType::Int8; }
  size_t element_bytes() const { return type == CacheType::Float32 ? 4 : type == CacheType::Int8 ? 1 : 2; }
  size_t vector_bytes() const { return element_bytes() * head_dim; }
  size_t values_at() const { return kBlock * vector_bytes(); }
  size_t key_scales_at() const { return 2 * values_at(); }
  size_t value_scales_at() const { return key_scales_at() + sizeof(uint16_t) * kBlock; }
  size_t bytes() const { return key_scales_at() + (scaled() ? 2 * sizeof(uint16_t) * kBlock : 0); }

  // One slot: a column of the keys, a row of the values, and their scales.
  void copy_slot(const uint8_t* from, int from_slot, uint8_t* to, int to_slot) const;
};

// Laid out as [block][layer][kv head].
struct Cache {
  HeadLayout layout;
  int layers = 0;
  int kv_heads = 0;
  int num_blocks = 0;
  Memory memory;

  size_t block_bytes() const { return layout.bytes() * kv_heads * layers; }
  uint8_t* head(int block, int layer, int kv_head) const {
    return memory.data() + block_bytes() * block + layout.bytes() * (static_cast<size_t>(layer) * kv_heads + kv_head);
  }

  // Throws std::bad_alloc.
  void allocate(int blocks);
  // One slot's keys and values in every layer.
  void copy_slot(int from, int to);
};

}  // namespace unspool
