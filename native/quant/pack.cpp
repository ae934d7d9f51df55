#include "pack.h"

#include <cmath>
#include <cstring>

#include "../half.h"

namespace unspool {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kRowScales = 2 * kPanelRows;  // bytes of 16 halves

size_t align(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Where the parts of a quantized panel lie.
struct Layout {
  size_t group_scales;  // bytes of one group's scales (and minima)
  size_t group_quants;
  size_t quants;        // offset of the first group's quants
  explicit Layout(TensorType type, int columns)
      : group_scales(type == TensorType::Q4_1 ? 2 * kRowScales : kRowScales),
        group_quants(type == TensorType::Q8_0 ? 512 : 256),
        quants(align(group_scales * (columns / kGroup))) {}
};

template <class T>
void put(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

template <class T>
T get(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The group's scales and quants of row r, from its block to its places in the panel.
bool pack_block(const BlockQ4_0& block, int r, uint8_t* scales, uint8_t* quants) {
  put(scales + 2 * r, block.d);
  for (int j = 0; j < 4; j++) std::memcpy(quants + 64 * j + 4 * r, block.q + 4 * j, 4);
  return half_is_finite(block.d);
}

bool pack_block(const BlockQ4_1& block, int r, uint8_t* scales, uint8_t* quants) {
  put(scales + 2 * r, block.d);
  put(scales + kRowScales + 2 * r, block.m);
  for (int j = 0; j < 4; j++) std::memcpy(quants + 64 * j + 4 * r, block.q + 4 * j, 4);
  return half_is_finite(block.d) && half_is_finite(block.m);
}

bool pack_block(const BlockQ8_0& block, int r, uint8_t* scales, uint8_t* quants) {
  put(scales + 2 * r, block.d);
  for (int j = 0; j < 8; j++) {
    put(quants + 64 * j + 4 * r, get<uint32_t>(reinterpret_cast<const uint8_t*>(block.q) + 4 * j) ^ 0x80808080u);
  }
  return half_is_finite(block.d);
}

template <class Block>
bool pack_quantized(const RawTensor& tensor, const RowOrder& order, int first_row, int rows, uint8_t* dst) {
  const Layout layout(tensor.type, tensor.columns);
  bool finite = true;
  for (int r = 0; r < rows; r++) {
    const uint8_t* row = tensor.row(order(first_row + r));
    for (int g = 0; g < tensor.columns / kGroup; g++) {
      finite &= pack_block(load_block<Block>(row, g), r, dst + layout.group_scales * g,
                           dst + layout.quants + layout.group_quants * g);
    }
  }
  return finite;
}

template <class Word>
bool pack_floats(const RawTensor& tensor, const RowOrder& order, int first_row, int rows, uint8_t* dst, Word exponent) {
  bool finite = true;
  for (int r = 0; r < rows; r++) {
    const uint8_t* row = tensor.row(order(first_row + r));
    for (int k = 0; k < tensor.columns; k++) {
      const Word word = get<Word>(row + sizeof(Word) * k);
      finite &= (word & exponent) != exponent;
      put(dst + sizeof(Word) * (static_cast<size_t>(kPanelRows) * k + r), word);
    }
  }
  return finite;
}

void unpack_quantized(const Matrix& matrix, const uint8_t* panel, int r, float* out) {
  const Layout layout(matrix.type, matrix.columns);
  for (int g = 0; g < matrix.groups(); g++, out += kGroup) {
    const uint8_t* scales = panel + layout.group_scales * g;
    const uint8_t* quants = panel + layout.quants + layout.group_quants * g;
    const float d = half_to_float(get<uint16_t>(scales + 2 * r));
    if (matrix.type == TensorType::Q8_0) {
      for (int k = 0; k < kGroup; k++) {
        out[k] = static_cast<float>(quants[64 * (k / 4) + 4 * r + k % 4] - 128) * d;
      }
      continue;
    }
    const bool has_minimum = matrix.type == TensorType::Q4_1;
    const float m = has_minimum ? half_to_float(get<uint16_t>(scales + kRowScales + 2 * r)) : 0.0f;
    const int zero = has_minimum ? 0 : 8;
    for (int k = 0; k < kGroup / 2; k++) {
      const int byte = quants[64 * (k / 4) + 4 * r + k % 4];
      out[k] = static_cast<float>((byte & 15) - zero) * d + m;
      out[k + 16] = static_cast<float>((byte >> 4) - zero) * d + m;
    }
  }
}

}  // namespace

size_t panel_bytes(TensorType type, int columns) {
  if (is_quantized(type)) {
    const Layout layout(type, columns);
    return layout.quants + layout.group_quants * (columns / kGroup);
  }
  return align((type == TensorType::F32 ? 4 : 2) * static_cast<size_t>(kPanelRows) * columns);
}

bool pack_panel(const RawTensor& tensor, const RowOrder& order, int panel, uint8_t* dst) {
  const int first_row = kPanelRows * panel;
  const int rows = tensor.rows - first_row < kPanelRows ? tensor.rows - first_row : kPanelRows;
  if (rows < kPanelRows) std::memset(dst, 0, panel_bytes(tensor.type, tensor.columns));
  switch (tensor.type) {
    case TensorType::F32:
      return pack_floats<uint32_t>(tensor, order, first_row, rows, dst, 0x7f800000u);
    case TensorType::F16:
      return pack_floats<uint16_t>(tensor, order, first_row, rows, dst, 0x7c00u);
    case TensorType::BF16:
      return pack_floats<uint16_t>(tensor, order, first_row, rows, dst, 0x7f80u);
    case TensorType::Q4_0:
      return pack_quantized<BlockQ4_0>(tensor, order, first_row, rows, dst);
    case TensorType::Q4_1:
      return pack_quantized<BlockQ4_1>(tensor, order, first_row, rows, dst);
    case TensorType::Q8_0:
      return pack_quantized<BlockQ8_0>(tensor, order, first_row, rows, dst);
  }
  return false;
}

void unpack_row(const Matrix& matrix, int row, float* out) {
  const int panel = row / kPanelRows, r = row % kPanelRows;
  int worker = 0;
  while (panel >= matrix.shares[worker].first + matrix.shares[worker].count) worker++;
  const uint8_t* p = matrix.panel(worker, panel - matrix.shares[worker].first);
  if (is_quantized(matrix.type)) return unpack_quantized(matrix, p, r, out);
  for (int k = 0; k < matrix.columns; k++) {
    const size_t at = static_cast<size_t>(kPanelRows) * k + r;
    switch (matrix.type) {
      case TensorType::F32:
        out[k] = get<float>(p + 4 * at);
        break;
      case TensorType::F16:
        out[k] = half_to_float(get<uint16_t>(p + 2 * at));
        break;
      default:
        out[k] = bfloat_to_float(get<uint16_t>(p + 2 * at));
    }
  }
}

}  // namespace unspool
