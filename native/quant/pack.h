// Weights laid out for the kernels: panels of 16 output rows, one sequential stream for each worker.
//
// A panel of a quantized type holds three runs, each padded to 64 bytes:
//   supers  of every 256 inputs, where the format has them: 16 halves, and 16 of minima
//   scales  of every group of 32: for each of its parts 16 halves or bytes, and as many of minima
//   codes   of every group: 64 bytes a bit
// Within a group codes come by fours of inputs. In the first 256 bytes, byte 64 j + 4 r + i is row r, its low four bits
// input 4 j + i, its high ones input 16 + 4 j + i. Of a fifth bit, byte 256 + 4 r + i has that of input 4 j + i in bit j
// and that of input 16 + 4 j + i in bit 4 + j. Of a fifth and sixth, byte 256 + 4 r + i has those of input 4 j + i in
// bits 2 j and 2 j + 1, byte 320 + 4 r + i those of input 16 + 4 j + i. Codes of eight bits are whole: byte
// 64 j + 4 r + i is input 4 j + i.
// Floats are [columns][16 rows]: F32 as they are, F16 and BF16 in their 16 bits. Rows past the last are zeros.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "formats.h"

namespace unspool {

constexpr int kPanelRows = 16;

// One worker's panels of a matrix. Panels may alternate, two by two, with another matrix's (gate and up).
struct Share {
  uint8_t* base = nullptr;
  int first = 0;  // panel
  int count = 0;
};

struct Matrix {
  TensorType type{};  // as it is packed
  int rows = 0;
  int columns = 0;
  size_t panel_bytes = 0;
  size_t pair_stride = 0;     // bytes from a pair of panels to the next pair
  std::vector<Share> shares;  // one a worker
  std::vector<float> bias;    // [rows, to whole panels] is added to the outputs, or none

  int groups() const { return columns / kGroup; }
  int panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  uint8_t* panel(int worker, int i) const {  // i counts within the worker's share
    return shares[worker].base + static_cast<size_t>(i / 2) * pair_stride + (i % 2) * panel_bytes;
  }
};

// Where each row of a query's or key's matrix is packed, head by head: pairs that a model keeps as (i, i + dim / 2)
// become neighbours, like those of other models. Scores do not change where queries and keys change alike.
struct RowOrder {
  int head_dim = 0;
  int halved = 0;  // dimensions at the start of each head whose pairs are brought together; 0: rows stay

  // The row of the model's matrix that becomes row r.
  int operator()(int r) const {
    if (!halved) return r;
    const int d = r % head_dim;
    return d < halved ? r - d + d / 2 + d % 2 * (halved / 2) : r;
  }
};

// Where the runs of a quantized panel lie.
struct PanelLayout {
  size_t scales, codes, bytes;
  constexpr PanelLayout(const PackedFormat& format, int groups)
      : scales(lines(format.super_bytes() * (groups / (kSuper / kGroup)))),
        codes(scales + lines(format.scale_bytes() * groups)), bytes(codes + format.code_bytes() * groups) {}

 private:
  static constexpr size_t lines(size_t n) { return (n + 63) / 64 * 64; }
};

// Of a packed type.
size_t panel_bytes(TensorType type, int columns);

// Packs rows 16 * panel and on, in the given order, into dst, as the tensor's packed_type. False where a scale, a minimum or a float is not finite.
bool pack_panel(const RawTensor& tensor, const RowOrder& order, int panel, uint8_t* dst);

// One row of a packed matrix as float32: what dequantize_row gives of the file's, as packed_type says.
void unpack_row(const Matrix& matrix, int row, float* out);

}  // namespace unspool
