// Rotary position embedding: each position's rotation of each pair of a head's dimensions.
#pragma once
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "memory.h"

namespace unspool {

// Of unspool.model.spec.Rotary: pairs are (2i, 2i + 1), or with `halves` (i, i + dim / 2).
struct RotarySpec {
  bool halves = false;
  std::vector<float> inverse_frequencies;  // [dim / 2]
  float factor = 1;

  int dim() const { return 2 * static_cast<int>(inverse_frequencies.size()); }
};

// Pair i, which is dimensions (2i, 2i + 1) here, turns by position * inverse_frequencies[i] (Su 2021, eq. 34). A
// position's entry is [cosines head_dim | sines head_dim], the sine of an even dimension negative, so that a rotation
// is v * cosines + swap_pairs(v) * sines. Dimensions that are not rotated have cosine 1 and sine 0.
class Rotary {
 public:
  Rotary(int head_dim, const RotarySpec& spec)
      : head_dim_(head_dim), factor_(spec.factor), frequencies_(spec.inverse_frequencies) {}

  // Room for that many positions, which replace() takes; entries are computed when first needed.
  Memory room_for(int positions) const { return Memory(sizeof(float) * 2 * head_dim_ * positions); }
  void replace(Memory table) {
    table_ = std::move(table);
    computed_ = 0;
  }

  // Computes what is missing of positions 0 to positions - 1.
  void extend(int positions) {
    for (; computed_ < positions; computed_++) {
      float* cosines = entry(computed_);
      float* sines = cosines + head_dim_;
      for (int d = 0; d < head_dim_; d++) cosines[d] = 1.0f;  // sines are zero: fresh memory
      for (size_t i = 0; i < frequencies_.size(); i++) {
        const double angle = computed_ * static_cast<double>(frequencies_[i]);
        cosines[2 * i] = cosines[2 * i + 1] = static_cast<float>(factor_ * std::cos(angle));
        sines[2 * i + 1] = static_cast<float>(factor_ * std::sin(angle));
        sines[2 * i] = -sines[2 * i + 1];
      }
    }
  }

  const float* cosines(int position) const { return entry(position); }
  const float* sines(int position) const { return entry(position) + head_dim_; }

 private:
  float* entry(int position) const { return table_.as<float>() + static_cast<size_t>(2) * head_dim_ * position; }

  int head_dim_;
  double factor_;
  std::vector<float> frequencies_;
  Memory table_;
  int computed_ = 0;
};

}  // namespace unspool
