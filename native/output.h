// Rows of floats that a step hands out.
#pragma once
#include <cstddef>
#include <memory>

#include "memory.h"

namespace unspool {

// Views share the memory: one that is held across a later step, which may need room for more rows, stays readable.
class Output {
 public:
  Output() = default;
  Output(size_t columns, size_t stride) : columns_(columns), stride_(stride) {}

  // Room for that many rows, which hold anything. Throws std::bad_alloc, and then nothing has changed.
  void resize(size_t rows) {
    const size_t bytes = sizeof(float) * stride_ * rows;
    if (!memory_ || memory_->size() < bytes) memory_ = std::make_shared<Memory>(bytes);
    data_ = memory_->as<float>();
    rows_ = rows;
  }

  float* row(int r) const { return data_ + stride_ * r; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t stride() const { return stride_; }  // floats from a row to the next
  std::shared_ptr<const Memory> memory() const { return memory_; }

 private:
  size_t rows_ = 0, columns_ = 0, stride_ = 0;
  float* data_ = nullptr;
  std::shared_ptr<Memory> memory_;
};

}  // namespace unspool
