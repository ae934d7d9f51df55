#include "formats.h"

#include <cstring>

#include "../half.h"

namespace unspool {
namespace {

void dequantize(const BlockQ4_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int j = 0; j < 16; j++) {
    out[j] = static_cast<float>((block.q[j] & 15) - 8) * d;
    out[j + 16] = static_cast<float>((block.q[j] >> 4) - 8) * d;
  }
}

void dequantize(const BlockQ4_1& block, float* out) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (int j = 0; j < 16; j++) {
    out[j] = static_cast<float>(block.q[j] & 15) * d + m;
    out[j + 16] = static_cast<float>(block.q[j] >> 4) * d + m;
  }
}

void dequantize(const BlockQ8_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int j = 0; j < 32; j++) out[j] = static_cast<float>(block.q[j]) * d;
}

template <class Block>
void dequantize_blocks(const uint8_t* row, int columns, float* out) {
  for (int g = 0; g < columns / kGroup; g++) dequantize(load_block<Block>(row, g), out + kGroup * g);
}

uint16_t load_word(const uint8_t* row, int k) {
  uint16_t word;
  std::memcpy(&word, row + 2 * k, 2);
  return word;
}

}  // namespace

bool is_supported(int type) {
  switch (static_cast<TensorType>(type)) {
    case TensorType::F32:
    case TensorType::F16:
    case TensorType::BF16:
    case TensorType::Q4_0:
    case TensorType::Q4_1:
    case TensorType::Q8_0:
      return true;
  }
  return false;
}

size_t row_bytes(TensorType type, int columns) {
  const size_t n = static_cast<size_t>(columns);
  switch (type) {
    case TensorType::F32:
      return 4 * n;
    case TensorType::F16:
    case TensorType::BF16:
      return 2 * n;
    case TensorType::Q4_0:
      return n / kGroup * sizeof(BlockQ4_0);
    case TensorType::Q4_1:
      return n / kGroup * sizeof(BlockQ4_1);
    case TensorType::Q8_0:
      return n / kGroup * sizeof(BlockQ8_0);
  }
  return 0;
}

void dequantize_row(TensorType type, const uint8_t* row, int columns, float* out) {
  switch (type) {
    case TensorType::F32:
      std::memcpy(out, row, 4 * static_cast<size_t>(columns));
      return;
    case TensorType::F16:
      for (int k = 0; k < columns; k++) out[k] = half_to_float(load_word(row, k));
      return;
    case TensorType::BF16:
      for (int k = 0; k < columns; k++) out[k] = bfloat_to_float(load_word(row, k));
      return;
    case TensorType::Q4_0:
      return dequantize_blocks<BlockQ4_0>(row, columns, out);
    case TensorType::Q4_1:
      return dequantize_blocks<BlockQ4_1>(row, columns, out);
    case TensorType::Q8_0:
      return dequantize_blocks<BlockQ8_0>(row, columns, out);
  }
}

}  // namespace unspool
