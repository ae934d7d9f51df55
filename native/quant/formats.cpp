#include "formats.h"

#include <cmath>

#include "../half.h"

namespace unspool {
namespace {

constexpr int kUnequalSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int kFloat4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void read_nibbles(const uint8_t* q, uint8_t* codes) {
  for (int j = 0; j < 16; j++) {
    codes[j] = q[j] & 15;
    codes[j + 16] = q[j] >> 4;
  }
}

void add_fifth_bits(const uint8_t* high, uint8_t* codes) {
  for (int j = 0; j < kGroup; j++) codes[j] = static_cast<uint8_t>(codes[j] | (high[j / 8] >> j % 8 & 1) << 4);
}

// Eight scales and eight minima of six bits each.
void read_six_bits(const uint8_t* packed, SuperBlock& block) {
  for (int i = 0; i < 4; i++) {
    const int scale = packed[i], minimum = packed[4 + i], rest = packed[8 + i];
    block.scales[i] = static_cast<int8_t>(scale & 63);
    block.minima[i] = static_cast<int8_t>(minimum & 63);
    block.scales[4 + i] = static_cast<int8_t>((rest & 15) | (scale >> 2 & 48));
    block.minima[4 + i] = static_cast<int8_t>(rest >> 4 | (minimum >> 2 & 48));
  }
}

// Four bits of each input: the groups come in pairs, the first of a pair low.
void read_pairs(const uint8_t* q, uint8_t* codes) {
  for (int i = 0; i < kSuper; i++) codes[i] = q[i / 64 * 32 + i % 32] >> 4 * (i / 32 % 2) & 15;
}

// Two bits of each input: four groups share their bytes.
int two_bits(const uint8_t* q, int i) { return q[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3; }

// The half of 2^exponent, for an exponent in -24..15.
uint16_t half_power(int exponent) {
  return static_cast<uint16_t>(exponent < -14 ? 1 << (exponent + 24) : (exponent + 15) << 10);
}

constexpr uint16_t negated(uint16_t half) { return half ^ 0x8000u; }

void dequantize(const BlockMXFP4& block, float* out) {
  const float d = std::ldexp(1.0f, block.e - 128);
  for (int j = 0; j < 16; j++) {
    out[j] = static_cast<float>(kFloat4[block.q[j] & 15]) * d;
    out[j + 16] = static_cast<float>(kFloat4[block.q[j] >> 4]) * d;
  }
}

template <class Block>
void dequantize_groups(TensorType type, const uint8_t* row, int columns, float* out) {
  const PackedFormat format = packed_format(type);
  for (int g = 0; g < columns / kGroup; g++, out += kGroup) {
    const Group group = read_group(load_block<Block>(row, g));
    const float d = half_to_float(group.d), m = half_to_float(group.m);
    for (int j = 0; j < kGroup; j++) {
      const float x = static_cast<float>(group.codes[j] - format.zero) * d;
      out[j] = format.minimum ? x + m : x;
    }
  }
}

template <class Block>
void dequantize_supers(TensorType type, const uint8_t* row, int columns, float* out) {
  const PackedFormat format = packed_format(type);
  for (int b = 0; b < columns / kSuper; b++, out += kSuper) {
    const SuperBlock block = read_super(load_block<Block>(row, b));
    const float d = half_to_float(block.d), m = half_to_float(block.m);
    for (int i = 0; i < kSuper; i++) {
      const int part = i * format.parts / kGroup;
      const float x = static_cast<float>(block.codes[i] - format.zero) * (d * static_cast<float>(block.scales[part]));
      out[i] = format.minimum ? x + m * static_cast<float>(block.minima[part]) : x;
    }
  }
}

uint16_t load_word(const uint8_t* row, int k) {
  uint16_t word;
  std::memcpy(&word, row + 2 * k, 2);
  return word;
}

// Inputs and bytes of one block; none of a type that is not supported.
struct BlockSize {
  int columns = 0;
  size_t bytes = 0;
};

constexpr BlockSize block_size(TensorType type) {
  switch (type) {
    case TensorType::F32:
      return {1, 4};
    case TensorType::F16:
    case TensorType::BF16:
      return {1, 2};
    case TensorType::Q4_0:
      return {kGroup, sizeof(BlockQ4_0)};
    case TensorType::Q4_1:
      return {kGroup, sizeof(BlockQ4_1)};
    case TensorType::Q5_0:
      return {kGroup, sizeof(BlockQ5_0)};
    case TensorType::Q5_1:
      return {kGroup, sizeof(BlockQ5_1)};
    case TensorType::Q8_0:
      return {kGroup, sizeof(BlockQ8_0)};
    case TensorType::IQ4_NL:
      return {kGroup, sizeof(BlockIQ4_NL)};
    case TensorType::MXFP4:
      return {kGroup, sizeof(BlockMXFP4)};
    case TensorType::Q2_K:
      return {kSuper, sizeof(BlockQ2_K)};
    case TensorType::Q3_K:
      return {kSuper, sizeof(BlockQ3_K)};
    case TensorType::Q4_K:
      return {kSuper, sizeof(BlockQ4_K)};
    case TensorType::Q5_K:
      return {kSuper, sizeof(BlockQ5_K)};
    case TensorType::Q6_K:
      return {kSuper, sizeof(BlockQ6_K)};
  }
  return {};
}

}  // namespace

Group read_group(const BlockQ4_0& block) {
  Group group{block.d, 0, {}};
  read_nibbles(block.q, group.codes);
  return group;
}

Group read_group(const BlockQ4_1& block) {
  Group group{block.d, block.m, {}};
  read_nibbles(block.q, group.codes);
  return group;
}

Group read_group(const BlockQ5_0& block) {
  Group group{block.d, 0, {}};
  read_nibbles(block.q, group.codes);
  add_fifth_bits(block.high, group.codes);
  return group;
}

Group read_group(const BlockQ5_1& block) {
  Group group{block.d, block.m, {}};
  read_nibbles(block.q, group.codes);
  add_fifth_bits(block.high, group.codes);
  return group;
}

Group read_group(const BlockQ8_0& block) {
  Group group{block.d, 0, {}};
  for (int j = 0; j < kGroup; j++) group.codes[j] = static_cast<uint8_t>(block.q[j] + 128);
  return group;
}

Group read_group(const BlockIQ4_NL& block) {
  Group group{block.d, 0, {}};
  read_nibbles(block.q, group.codes);
  for (uint8_t& code : group.codes) code = static_cast<uint8_t>(kUnequalSteps[code] + 128);
  return group;
}

// A half reaches from 2^-24 to 2^15, eight bits hold 8 * 12: what is larger still becomes infinity, as damaged files
// have it; what is smaller rounds.
Group read_group(const BlockMXFP4& block) {
  const int exponent = block.e - 128;
  const int kept = exponent < -24 ? -24 : exponent > 15 ? 15 : exponent;
  Group group{exponent > 18 ? uint16_t{0x7c00} : half_power(kept), 0, {}};
  read_nibbles(block.q, group.codes);
  for (uint8_t& code : group.codes) {
    const float value = exponent > 18 ? 1.0f : std::ldexp(static_cast<float>(kFloat4[code]), exponent - kept);
    code = static_cast<uint8_t>(static_cast<int>(std::nearbyint(value)) + 128);
  }
  return group;
}

SuperBlock read_super(const BlockQ2_K& block) {
  SuperBlock super;
  super.d = block.d;
  super.m = negated(block.dmin);
  for (int i = 0; i < 16; i++) {
    super.scales[i] = static_cast<int8_t>(block.scales[i] & 15);
    super.minima[i] = static_cast<int8_t>(block.scales[i] >> 4);
  }
  for (int i = 0; i < kSuper; i++) super.codes[i] = static_cast<uint8_t>(two_bits(block.q, i));
  return super;
}

SuperBlock read_super(const BlockQ3_K& block) {  // q - 4 becomes (q + 28) - 32
  SuperBlock super;
  super.d = block.d;
  for (int i = 0; i < 16; i++) {
    const int low = block.scales[i % 8] >> 4 * (i / 8) & 15, high = block.scales[8 + i % 4] >> 2 * (i / 4) & 3;
    super.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
  for (int i = 0; i < kSuper; i++) {
    const int third = block.high[i % 32] >> i / 32 & 1;
    super.codes[i] = static_cast<uint8_t>((two_bits(block.q, i) | third << 2) + 28);
  }
  return super;
}

SuperBlock read_super(const BlockQ4_K& block) {
  SuperBlock super;
  super.d = block.d;
  super.m = negated(block.dmin);
  read_six_bits(block.scales, super);
  read_pairs(block.q, super.codes);
  return super;
}

SuperBlock read_super(const BlockQ5_K& block) {
  SuperBlock super;
  super.d = block.d;
  super.m = negated(block.dmin);
  read_six_bits(block.scales, super);
  read_pairs(block.q, super.codes);
  for (int i = 0; i < kSuper; i++) {
    super.codes[i] = static_cast<uint8_t>(super.codes[i] | (block.high[i % 32] >> i / 32 & 1) << 4);
  }
  return super;
}

SuperBlock read_super(const BlockQ6_K& block) {
  SuperBlock super;
  super.d = block.d;
  std::memcpy(super.scales, block.scales, sizeof super.scales);
  for (int i = 0; i < kSuper; i++) {
    const int low = block.low[i / 128 * 64 + i % 64] >> 4 * (i / 64 % 2) & 15;
    super.codes[i] = static_cast<uint8_t>(low | two_bits(block.high, i) << 4);
  }
  return super;
}

bool is_supported(int type) { return block_size(static_cast<TensorType>(type)).columns != 0; }

int block_columns(TensorType type) { return block_size(type).columns; }

size_t row_bytes(TensorType type, int columns) {
  const BlockSize block = block_size(type);
  return static_cast<size_t>(columns / block.columns) * block.bytes;
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
    case TensorType::MXFP4:
      for (int g = 0; g < columns / kGroup; g++) dequantize(load_block<BlockMXFP4>(row, g), out + kGroup * g);
      return;
    case TensorType::Q4_0:
      return dequantize_groups<BlockQ4_0>(type, row, columns, out);
    case TensorType::Q4_1:
      return dequantize_groups<BlockQ4_1>(type, row, columns, out);
    case TensorType::Q5_0:
      return dequantize_groups<BlockQ5_0>(type, row, columns, out);
    case TensorType::Q5_1:
      return dequantize_groups<BlockQ5_1>(type, row, columns, out);
    case TensorType::Q8_0:
      return dequantize_groups<BlockQ8_0>(type, row, columns, out);
    case TensorType::IQ4_NL:
      return dequantize_groups<BlockIQ4_NL>(type, row, columns, out);
    case TensorType::Q2_K:
      return dequantize_supers<BlockQ2_K>(type, row, columns, out);
    case TensorType::Q3_K:
      return dequantize_supers<BlockQ3_K>(type, row, columns, out);
    case TensorType::Q4_K:
      return dequantize_supers<BlockQ4_K>(type, row, columns, out);
    case TensorType::Q5_K:
      return dequantize_supers<BlockQ5_K>(type, row, columns, out);
    case TensorType::Q6_K:
      return dequantize_supers<BlockQ6_K>(type, row, columns, out);
  }
}

}  // namespace unspool
