// The paged key-value cache: blocks of 16 token slots, each with every layer's keys and values.
#pragma once
#include <cstddef>
#include <cstdint>

#include "memory.h"

namespace unspool {

constexpr int kBlock = 16;

// Laid out as [block][layer][kv head][keys: head_dim x 16 slots | values: 16 slots x head_dim], in halves:
// scores of 16 positions are lanes of one register, and so are 16 dimensions of a value.
struct Cache {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int num_blocks = 0;
  Memory memory;

  size_t head_halves() const { return static_cast<size_t>(2) * kBlock * head_dim; }
  size_t block_halves() const { return head_halves() * kv_heads * layers; }
  uint16_t* keys(int block, int layer, int kv_head) const {
    const size_t head = static_cast<size_t>(layer) * kv_heads + kv_head;
    return memory.as<uint16_t>() + block_halves() * block + head_halves() * head;
  }
  // Given the same block's keys.
  uint16_t* values(uint16_t* keys) const { return keys + static_cast<size_t>(kBlock) * head_dim; }
  const uint16_t* values(const uint16_t* keys) const { return keys + static_cast<size_t>(kBlock) * head_dim; }

  // Throws std::bad_alloc.
  void allocate(int blocks);
  // One slot's keys and values in every layer.
  void copy_slot(int from, int to);
};

// One slot of one head: a column of the keys, a row of the values.
inline void copy_head_slot(const uint16_t* from_keys, int from, uint16_t* to_keys, int to, int head_dim) {
  const uint16_t* from_values = from_keys + static_cast<size_t>(kBlock) * head_dim;
  uint16_t* to_values = to_keys + static_cast<size_t>(kBlock) * head_dim;
  for (int d = 0; d < head_dim; d++) {
    to_keys[kBlock * d + to] = from_keys[kBlock * d + from];
    to_values[head_dim * to + d] = from_values[head_dim * from + d];
  }
}

}  // namespace unspool
