// One worker's own room.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cache.h"
#include "memory.h"

namespace unspool {

// Positions of a sequence are attended to in fixed pieces: scores, their softmax and the mix of values are
// computed piece by piece and merged in order, whoever computes them.
constexpr int kPiece = 128;
constexpr int kPieceBlocks = kPiece / kBlock;
// Query rows (tokens times heads) that share one walk over the keys and values.
constexpr int kQueryRows = 48;

class Scratch {
 public:
  // row_floats: the widest row of activations; tokens: the most that one step holds.
  Scratch(const HeadLayout& layout, int group_heads, int row_floats, int tokens) {
    const int head_dim = layout.head_dim;
    const size_t rows = kQueryRows > group_heads ? kQueryRows : group_heads;
    const size_t row = static_cast<size_t>(row_floats), path_blocks = static_cast<size_t>(tokens) / kBlock + 2;
    const size_t floats = row + rows * (2 * static_cast<size_t>(head_dim) + kPiece + 4);
    const size_t coded_rows = layout.scaled() ? rows : 0;
    memory_ = Memory(sizeof(float) * (floats + 3 * coded_rows) + 2 * coded_rows * head_dim + 64 +
                     path_blocks * layout.bytes());
    float* next = memory_.as<float>();
    const auto take = [&](size_t count) { return (next += count) - count; };
    this->row = take(row);
    mix = take(rows * head_dim);
    merged = take(rows * head_dim);
    scores = take(rows * kPiece);
    largest = take(rows);
    sum = take(rows);
    merged_largest = take(rows);
    merged_sum = take(rows);
    query_scales = take(coded_rows);
    query_sums = reinterpret_cast<int32_t*>(take(2 * coded_rows));
    query_codes = reinterpret_cast<int8_t*>(next);
    const size_t used = reinterpret_cast<uint8_t*>(next) - memory_.data() + 2 * coded_rows * head_dim;
    path = memory_.data() + (used + 63) / 64 * 64;
  }

  float* row;  // of activations

  // One item of attention, row by row of its queries.
  float* mix;                          // [rows][head_dim] of one piece
  float* merged;                       // [rows][head_dim] of the pieces so far
  float* scores;                       // [rows][kPiece], then their exponentials
  float *largest, *sum;                // [rows] of one piece
  float *merged_largest, *merged_sum;  // [rows] of the pieces so far
  float* query_scales;                 // [rows] where keys are int8: queries are integers then
  int32_t* query_sums;                 // [rows][2] of the codes
  int8_t* query_codes;                 // [rows][2][head_dim] coarse and fine
  uint8_t* path;  // blocks of keys and values of a draft's path, in the order of positions

 private:
  Memory memory_;
};

}  // namespace unspool
