// How tensors are stored in a file, and the one exact meaning of each format.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace unspool {

static_assert(std::endian::native == std::endian::little, "files and packed weights are little-endian");

// Numbered as GGUF numbers them.
enum class TensorType : int {
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
  Q6_K = 14, IQ4_NL = 20, BF16 = 30, MXFP4 = 39
};

// Inputs that share one scale, in activations and in most weights.
constexpr int kGroup = 32;
// Inputs of a block whose scales share a scale in turn.
constexpr int kSuper = 256;

// Below, byte j of a nibble format holds input j in its low four bits and input j + 16 in its high ones.
struct BlockQ4_0 {  // x = (q - 8) d
  uint16_t d;
  uint8_t q[16];
};
struct BlockQ4_1 {  // x = q d + m
  uint16_t d, m;
  uint8_t q[16];
};
struct BlockQ5_0 {  // x = (q - 16) d; bit j of `high` is the fifth of input j
  uint16_t d;
  uint8_t high[4];
  uint8_t q[16];
};
struct BlockQ5_1 {  // x = q d + m
  uint16_t d, m;
  uint8_t high[4];
  uint8_t q[16];
};
struct BlockQ8_0 {  // x = q d
  uint16_t d;
  int8_t q[32];
};
struct BlockIQ4_NL {  // x = v[q] d, v being 16 values at unequal distances
  uint16_t d;
  uint8_t q[16];
};
struct BlockMXFP4 {  // x = v[q] 2^(e - 128), v being 0, 1, 2, 3, 4, 6, 8, 12 and the same negated
  uint8_t e;
  uint8_t q[16];
};

// Blocks of 256 inputs. Scales (and minima) are small integers, one for 16 inputs (Q2, Q3, Q6) or 32 (Q4, Q5).
struct BlockQ2_K {  // x = q (d scale) - dmin minimum; a byte of `scales` holds the scale low, the minimum high
  uint8_t scales[16];
  uint8_t q[64];
  uint16_t d, dmin;
};
struct BlockQ3_K {  // x = (q - 4) (d (scale - 32)); the third bits of q lie in `high`
  uint8_t high[32];
  uint8_t q[64];
  uint8_t scales[12];
  uint16_t d;
};
struct BlockQ4_K {  // x = q (d scale) - dmin minimum
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t q[128];
};
struct BlockQ5_K {  // likewise, with the fifth bits in `high`
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[128];
};
struct BlockQ6_K {  // x = (q - 32) (d scale)
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 &&
              sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 &&
              sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);

// Block b of a row, wherever in memory a file's tensor begins.
template <class Block>
Block load_block(const uint8_t* row, int b) {
  Block block;
  std::memcpy(&block, row + sizeof block * b, sizeof block);
  return block;
}

// How the kernels hold a quantized type: x = (code - zero) scale + minimum.
struct PackedFormat {
  int bits;      // of a code: 4, 5, 6 or 8
  int zero;      // the code that stands for 0
  int parts;     // of a group that have scales of their own: 1, or 2 of 16 inputs
  bool minimum;  // added to every x of a part, or none
  bool super;    // scales and minima are bytes, to be multiplied by a half of each 256 inputs; or halves themselves

  // Bytes that 16 rows take: of codes and of scales in a group, of halves in 256 inputs.
  constexpr size_t code_bytes() const { return 64 * static_cast<size_t>(bits); }
  constexpr size_t scale_bytes() const { return parts * (minimum ? 2 : 1) * (super ? size_t{16} : size_t{32}); }
  constexpr size_t super_bytes() const { return super ? (minimum ? 64 : 32) : 0; }
};

// Of a type that is multiplied as integers: its own, or that of packed_type.
constexpr PackedFormat packed_format(TensorType type) {
  switch (type) {
    case TensorType::Q4_0:
      return {4, 8, 1, false, false};
    case TensorType::Q4_1:
      return {4, 0, 1, true, false};
    case TensorType::Q5_0:
      return {5, 16, 1, false, false};
    case TensorType::Q5_1:
      return {5, 0, 1, true, false};
    case TensorType::Q2_K:
      return {4, 0, 2, true, true};
    case TensorType::Q4_K:
      return {4, 0, 1, true, true};
    case TensorType::Q5_K:
      return {5, 0, 1, true, true};
    case TensorType::Q3_K:
    case TensorType::Q6_K:
      return {6, 32, 2, false, true};
    default:
      return {8, 128, 1, false, false};
  }
}

// The type whose kernels compute with another: itself, or one that holds its values exactly. (Of MXFP4, values below
// 2^-20 are rounded to multiples of 2^-24.)
constexpr TensorType packed_type(TensorType type) {
  switch (type) {
    case TensorType::Q3_K:
      return TensorType::Q6_K;
    case TensorType::IQ4_NL:
    case TensorType::MXFP4:
      return TensorType::Q8_0;
    default:
      return type;
  }
}

// Whether the type can be computed with.
bool is_supported(int type);
// Whether the type is multiplied as integers, by groups of 32.
constexpr bool is_quantized(TensorType type) {
  return type != TensorType::F32 && type != TensorType::F16 && type != TensorType::BF16;
}
// Inputs of one block: rows have whole blocks.
int block_columns(TensorType type);
// Bytes of one row of that many columns.
size_t row_bytes(TensorType type, int columns);

// A group of 32 inputs: x = (code - zero) d + m, as packed_format has them.
struct Group {
  uint16_t d = 0, m = 0;  // halves
  uint8_t codes[kGroup];
};
Group read_group(const BlockQ4_0& block);
Group read_group(const BlockQ4_1& block);
Group read_group(const BlockQ5_0& block);
Group read_group(const BlockQ5_1& block);
Group read_group(const BlockQ8_0& block);
Group read_group(const BlockIQ4_NL& block);
Group read_group(const BlockMXFP4& block);

// A block of 256 inputs: x = (code - zero) (d scale) + m minimum, by parts of 32 or 16 inputs.
struct SuperBlock {
  uint16_t d = 0, m = 0;  // halves
  int8_t scales[16] = {};
  int8_t minima[16] = {};
  uint8_t codes[kSuper];
};
SuperBlock read_super(const BlockQ2_K& block);
SuperBlock read_super(const BlockQ3_K& block);
SuperBlock read_super(const BlockQ4_K& block);
SuperBlock read_super(const BlockQ5_K& block);
SuperBlock read_super(const BlockQ6_K& block);

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
