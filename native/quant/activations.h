// The inputs of a matrix, one row a token: as int8 in groups of 32 with a scale each, as float32, or both.
#pragma once
#include <cstddef>
#include <cstdint>

namespace unspool {

// Tokens cut into tiles of nearly equal size, none above the kernels' limit.
struct Tiling {
  int tokens = 0;
  int tiles = 0;

  Tiling() = default;
  Tiling(int tokens, int tile) : tokens(tokens), tiles((tokens + tile - 1) / tile) {}
  int start(int i) const { return static_cast<int>(static_cast<int64_t>(tokens) * i / tiles); }
  // The tile that holds token t.
  int tile_of(int t) const {
    int i = static_cast<int>(static_cast<int64_t>(t) * tiles / tokens);
    while (start(i + 1) <= t) i++;
    return i;
  }
};

// Room for `capacity` tokens of `columns` inputs. Quantized inputs are packed tile by tile as
// [tile][group][token of the tile], so that a kernel reads one stream.
struct Activations {
  int columns = 0;
  int8_t* codes = nullptr;    // 32 a place: round(x / scale), in -127..127
  float* scales = nullptr;    // max |x| / 127
  float* offsets = nullptr;   // scale * sum of codes: what a weight's minimum is multiplied by
  int32_t* sums = nullptr;    // sum of codes
  int32_t* first_sums = nullptr;  // sum of the first 16 codes
  float* floats = nullptr;    // [token][columns], or none where nothing reads it

  int groups() const { return columns / 32; }
  float* row(int t) const { return floats + static_cast<size_t>(columns) * t; }
  // The place of the first token of a tile that starts at token `start`, in units of one group of one token.
  size_t place(int start) const { return static_cast<size_t>(start) * groups(); }
};

}  // namespace unspool
