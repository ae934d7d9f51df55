#include "pack.h"

#include <cmath>
#include <cstring>

#include "../half.h"

namespace unspool {
namespace {

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

// Row r of a run that has one T for each of 16 rows.
template <class T>
void put_row(uint8_t* run, int r, T value) {
  put(run + sizeof value * r, value);
}

template <class T>
T get_row(const uint8_t* run, int r) {
  return get<T>(run + sizeof(T) * r);
}

// A row's 32 codes to its places in the group, four to a word.
void put_codes(const PackedFormat& format, const uint8_t* codes, int r, uint8_t* group) {
  uint32_t fifth = 0, low_pair = 0, high_pair = 0;
  for (int j = 0; j < 4; j++) {
    const uint32_t low = get_row<uint32_t>(codes, j), high = get_row<uint32_t>(codes + 16, j);
    if (format.bits == 8) {
      put_row(group + 64 * j, r, low);
      put_row(group + 64 * (j + 4), r, high);
      continue;
    }
    put_row(group + 64 * j, r, (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4);
    fifth |= (low >> 4 & 0x01010101u) << j | (high >> 4 & 0x01010101u) << (j + 4);
    low_pair |= (low >> 4 & 0x03030303u) << 2 * j;
    high_pair |= (high >> 4 & 0x03030303u) << 2 * j;
  }
  if (format.bits == 5) put_row(group + 256, r, fifth);
  if (format.bits == 6) {
    put_row(group + 256, r, low_pair);
    put_row(group + 320, r, high_pair);
  }
}

// Input k of row r.
int code_at(const PackedFormat& format, const uint8_t* group, int r, int k) {
  const int byte = 4 * r + k % 4, j = k / 4 % 4, half = k / 16;
  if (format.bits == 8) return group[64 * (k / 4) + byte];
  const int code = group[64 * j + byte] >> 4 * half & 15;
  if (format.bits == 5) return code | (group[256 + byte] >> (4 * half + j) & 1) << 4;
  if (format.bits == 6) return code | (group[256 + 64 * half + byte] >> 2 * j & 3) << 4;
  return code;
}

// One row of the panel, from blocks of 32 inputs.
template <class Block>
bool pack_groups(const PackedFormat& format, const uint8_t* row, int groups, int r, uint8_t* panel) {
  const PanelLayout layout(format, groups);
  bool finite = true;
  for (int g = 0; g < groups; g++) {
    const Group group = read_group(load_block<Block>(row, g));
    uint8_t* scales = panel + layout.scales + format.scale_bytes() * g;
    put_row(scales, r, group.d);
    if (format.minimum) put_row(scales + 32, r, group.m);
    put_codes(format, group.codes, r, panel + layout.codes + format.code_bytes() * g);
    finite = finite && half_is_finite(group.d) && half_is_finite(group.m);
  }
  return finite;
}

// The same from blocks of 256.
template <class Block>
bool pack_supers(const PackedFormat& format, const uint8_t* row, int groups, int r, uint8_t* panel) {
  constexpr int kGroups = kSuper / kGroup;
  const PanelLayout layout(format, groups);
  bool finite = true;
  for (int b = 0; b < groups / kGroups; b++) {
    const SuperBlock block = read_super(load_block<Block>(row, b));
    uint8_t* super = panel + format.super_bytes() * b;
    put_row(super, r, block.d);
    if (format.minimum) put_row(super + 32, r, block.m);
    finite = finite && half_is_finite(block.d) && half_is_finite(block.m);
    for (int i = 0; i < kGroups; i++) {
      const int g = kGroups * b + i;
      uint8_t* scales = panel + layout.scales + format.scale_bytes() * g;
      for (int part = 0; part < format.parts; part++) {
        put_row(scales + 16 * part, r, block.scales[format.parts * i + part]);
        if (format.minimum) put_row(scales + 16 * (format.parts + part), r, block.minima[format.parts * i + part]);
      }
      put_codes(format, block.codes + kGroup * i, r, panel + layout.codes + format.code_bytes() * g);
    }
  }
  return finite;
}

using RowPacker = bool (*)(const PackedFormat& format, const uint8_t* row, int groups, int r, uint8_t* panel);

RowPacker row_packer(TensorType type) {
  switch (type) {
    case TensorType::Q4_0:
      return pack_groups<BlockQ4_0>;
    case TensorType::Q4_1:
      return pack_groups<BlockQ4_1>;
    case TensorType::Q5_0:
      return pack_groups<BlockQ5_0>;
    case TensorType::Q5_1:
      return pack_groups<BlockQ5_1>;
    case TensorType::Q8_0:
      return pack_groups<BlockQ8_0>;
    case TensorType::IQ4_NL:
      return pack_groups<BlockIQ4_NL>;
    case TensorType::MXFP4:
      return pack_groups<BlockMXFP4>;
    case TensorType::Q2_K:
      return pack_supers<BlockQ2_K>;
    case TensorType::Q3_K:
      return pack_supers<BlockQ3_K>;
    case TensorType::Q4_K:
      return pack_supers<BlockQ4_K>;
    case TensorType::Q5_K:
      return pack_supers<BlockQ5_K>;
    case TensorType::Q6_K:
      return pack_supers<BlockQ6_K>;
    default:
      return nullptr;
  }
}

bool pack_quantized(const RawTensor& tensor, const RowOrder& order, int first_row, int rows, uint8_t* dst) {
  const PackedFormat format = packed_format(packed_type(tensor.type));
  const RowPacker pack = row_packer(tensor.type);
  bool finite = true;
  for (int r = 0; r < rows; r++) {
    finite &= pack(format, tensor.row(order(first_row + r)), tensor.columns / kGroup, r, dst);
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

// The scale and the minimum of one part of a group.
struct PartScale {
  float d, m;
};

PartScale part_scale(const PackedFormat& format, const uint8_t* super, const uint8_t* scales, int r, int part) {
  if (!format.super) {
    return {half_to_float(get_row<uint16_t>(scales, r)),
            format.minimum ? half_to_float(get_row<uint16_t>(scales + 32, r)) : 0.0f};
  }
  const auto product = [&](const uint8_t* half, const uint8_t* byte) {
    return half_to_float(get_row<uint16_t>(half, r)) * static_cast<float>(get_row<int8_t>(byte, r));
  };
  return {product(super, scales + 16 * part),
          format.minimum ? product(super + 32, scales + 16 * (format.parts + part)) : 0.0f};
}

void unpack_quantized(const Matrix& matrix, const uint8_t* panel, int r, float* out) {
  const PackedFormat format = packed_format(matrix.type);
  const PanelLayout layout(format, matrix.groups());
  const int inputs = kGroup / format.parts;
  for (int g = 0; g < matrix.groups(); g++) {
    const uint8_t* super = panel + format.super_bytes() * (g / (kSuper / kGroup));
    const uint8_t* scales = panel + layout.scales + format.scale_bytes() * g;
    const uint8_t* codes = panel + layout.codes + format.code_bytes() * g;
    for (int part = 0; part < format.parts; part++) {
      const auto [d, m] = part_scale(format, super, scales, r, part);
      for (int k = inputs * part; k < inputs * (part + 1); k++, out++) {
        const float x = static_cast<float>(code_at(format, codes, r, k) - format.zero) * d;
        *out = format.minimum ? x + m : x;
      }
    }
  }
}

}  // namespace

size_t panel_bytes(TensorType type, int columns) {
  if (is_quantized(type)) return PanelLayout(packed_format(type), columns / kGroup).bytes;
  return ((type == TensorType::F32 ? 4 : 2) * static_cast<size_t>(kPanelRows) * columns + 63) / 64 * 64;
}

bool pack_panel(const RawTensor& tensor, const RowOrder& order, int panel, uint8_t* dst) {
  const int first_row = kPanelRows * panel;
  const int rows = tensor.rows - first_row < kPanelRows ? tensor.rows - first_row : kPanelRows;
  if (rows < kPanelRows) std::memset(dst, 0, panel_bytes(packed_type(tensor.type), tensor.columns));
  switch (tensor.type) {
    case TensorType::F32:
      return pack_floats<uint32_t>(tensor, order, first_row, rows, dst, 0x7f800000u);
    case TensorType::F16:
      return pack_floats<uint16_t>(tensor, order, first_row, rows, dst, 0x7c00u);
    case TensorType::BF16:
      return pack_floats<uint16_t>(tensor, order, first_row, rows, dst, 0x7f80u);
    default:
      return pack_quantized(tensor, order, first_row, rows, dst);
  }
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
