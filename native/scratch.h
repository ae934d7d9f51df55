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
  Scratch(int head_dim, int group_heads, int row_floats, int tokens) {
    const size_t rows = kQueryRows > group_heads ? kQueryRows : group_heads;
    const size_t row = static_cast<size_t>(row_floats), path_blocks = static_cast<size_t>(tokens) / kBlock + 2;
    const size_t floats = row + rows * (2 * static_cast<size_t>(head_dim) + kPiece + 4);
    memory_ = Memory(sizeof(float) * floats + sizeof(uint16_t) * path_blocks * 2 * kBlock * head_dim);
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
    path = reinterpret_cast<uint16_t*>(next);
  }

  float* row;  // of activations

  // One item of attention, row by row of its queries.
  float* mix;                          // [rows][head_dim] of one piece
  float* merged;                       // [rows][head_dim] of the pieces so far
  float* scores;                       // [rows][kPiece], then their exponentials
  float *largest, *sum;                // [rows] of one piece
  float *merged_largest, *merged_sum;  // [rows] of the pieces so far
  uint16_t* path;  // blocks of keys and values of a draft's path, in the order of positions

 private:
  Memory memory_;
};

}  // namespace unspool
