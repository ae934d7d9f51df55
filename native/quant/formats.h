// How tensors are stored in a file, and the one exact meaning of each format.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace unspool {

static_assert(std::endian::native == std::endian::little, "files and packed weights are little-endian");

// Numbered as GGUF numbers them.
enum class TensorType : int { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, BF16 = 30 };

// Inputs that share one scale, in weights and in activations.
constexpr int kGroup = 32;

struct BlockQ4_0 {  // x = (q - 8) d; byte j holds inputs j (low four bits) and j + 16
  uint16_t d;
  uint8_t q[16];
};
struct BlockQ4_1 {  // x = q d + m; nibbles as in Q4_0
  uint16_t d, m;
  uint8_t q[16];
};
struct BlockQ8_0 {  // x = q d
  uint16_t d;
  int8_t q[32];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ8_0) == 34);

// Block g of a row, wherever in memory a file's tensor begins.
template <class Block>
Block load_block(const uint8_t* row, int g) {
  Block block;
  std::memcpy(&block, row + sizeof block * g, sizeof block);
  return block;
}

// Whether kernels exist for the type.
bool is_supported(int type);
// Whether the type is multiplied as integers, by groups of 32.
constexpr bool is_quantized(TensorType type) {
  return type == TensorType::Q4_0 || type == TensorType::Q4_1 || type == TensorType::Q8_0;
}
// Bytes of one row of that many columns (a multiple of 32 where the type is quantized).
size_t row_bytes(TensorType type, int columns);

// One row as float32, exactly as gguf.quants.dequantize has it.
void dequantize_row(TensorType type, const uint8_t* row, int columns, float* out);

// A matrix as it lies in a file.
struct RawTensor {
  TensorType type;
  int rows;
  int columns;
  const uint8_t* data;

  const uint8_t* row(int r) const { return data + row_bytes(type, columns) * r; }
};

}  // namespace unspool
