// Rotary position embedding: each position's rotation of each pair of a head's dimensions.
#pragma once
#include <cmath>
#include <vector>

#include "memory.h"

namespace unspool {

// Pairs are (2i, 2i + 1), at angle position * theta^(-2i / rope_dim) (Su 2021, eq. 34). A position's entry is
// [cosines head_dim | sines head_dim], the sine of an even dimension negative, so that a rotation is
// v * cosines + swap_pairs(v) * sines. Dimensions from rope_dim on have cosine 1 and sine 0.
class Rotary {
 public:
  Rotary(int head_dim, int rope_dim, double theta) : head_dim_(head_dim) {
    for (int i = 0; i < rope_dim / 2; i++) frequencies_.push_back(std::pow(theta, -2.0 * i / rope_dim));
  }

  // Room for that many positions; entries are computed when first needed.
  void allocate(int positions) {
    table_ = Memory(entry_bytes() * positions);
    computed_ = 0;
  }

  // Computes what is missing of positions 0 to positions - 1.
  void extend(int positions) {
    for (; computed_ < positions; computed_++) {
      float* cosines = entry(computed_);
      float* sines = cosines + head_dim_;
      for (int d = 0; d < head_dim_; d++) cosines[d] = 1.0f;  // sines are zero: fresh memory
      for (size_t i = 0; i < frequencies_.size(); i++) {
        const double angle = computed_ * frequencies_[i];
        cosines[2 * i] = cosines[2 * i + 1] = static_cast<float>(std::cos(angle));
        sines[2 * i + 1] = static_cast<float>(std::sin(angle));
        sines[2 * i] = -sines[2 * i + 1];
      }
    }
  }

  const float* cosines(int position) const { return entry(position); }
  const float* sines(int position) const { return entry(position) + head_dim_; }

 private:
  size_t entry_bytes() const { return sizeof(float) * 2 * head_dim_; }
  float* entry(int position) const { return table_.as<float>() + static_cast<size_t>(2) * head_dim_ * position; }

  int head_dim_;
  std::vector<double> frequencies_;
  Memory table_;
  int computed_ = 0;
};

}  // namespace unspool
