// One forward pass over a ragged batch of token runs: what the caller asks, and how it is shared out.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory.h"
#include "model.h"
#include "output.h"
#include "quant/activations.h"
#include "scratch.h"

namespace unspool {

// The arrays of unspool.backend.base.StepBatch, borrowed.
struct StepBatch {
  int num_tokens = 0, num_runs = 0, max_blocks = 0, num_rows = 0, num_hidden = 0;
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* parents = nullptr;
  const int32_t* run_starts = nullptr;
  const int32_t* block_table = nullptr;  // [num_runs][max_blocks]
  const int32_t* context_lens = nullptr;
  const int32_t* rows = nullptr;
  const int32_t* hidden_rows = nullptr;
  const int32_t* exits = nullptr;  // [num_rows], or none: every row is taken after the last layer

  const int32_t* table(int run) const { return block_table + static_cast<size_t>(max_blocks) * run; }
  bool is_early(int row, int num_layers) const { return exits && exits[row] < num_layers; }
};

// What one worker attends for at a time: tokens first to last - 1 of one run, `heads` query heads of one kv
// head, pieces first_piece to last_piece - 1.
struct AttentionItem {
  int run, first, last;
  int first_head, heads;
  int first_piece, last_piece;
};

// The tokens that a layer goes on with once keys and values are written: all, and in the last layer those whose
// rows or hidden states are wanted of it.
struct RowSet {
  std::vector<int32_t> tokens;
  Tiling tiling;
  bool alone = false;  // few: each worker makes all inputs for itself, which spares barriers
  std::vector<AttentionItem> items;

  int count() const { return static_cast<int>(tokens.size()); }
};

// The step under way, the plan that every worker follows, and scratch for up to `capacity` tokens.
class Step {
 public:
  // For batches of up to `capacity` tokens. Throws std::invalid_argument, std::bad_alloc.
  Step(const Model& model, int workers, int capacity);

  // Checks the batch, throwing std::invalid_argument where it is malformed, and plans it. Throws std::bad_alloc.
  void plan(const Model& model, const StepBatch& batch);

  // The query of a head at a token.
  float* query(int head, int t) const {
    const size_t group = head / group_heads_, within = head % group_heads_;
    return queries + ((group * capacity_ + t) * group_heads_ + within) * head_dim_;
  }
  size_t query_stride() const { return static_cast<size_t>(group_heads_) * head_dim_; }  // to the next token
  float* part(int t, int head, int piece) {
    return parts_.as<float>() + ((static_cast<size_t>(t) * num_heads_ + head) * max_pieces + piece) * part_floats_;
  }

  StepBatch batch;
  Output logits, hidden;

  RowSet all, wanted;
  std::vector<int32_t> early_rows;    // rows of logits that are taken before the last layer, the earliest first
  std::vector<int32_t> early_starts;  // [num_layers + 1] the first of them that is taken after so many layers
  Tiling head_tiling;  // of the rows of logits, in the order they are wanted
  bool head_alone = false;
  bool split_pieces = false;  // an item is one piece; its part is merged later
  int positions = 0;          // one more than the last position of any token
  int max_pieces = 0;         // of any token
  std::vector<uint8_t> in_place;  // [run] whether each token lies in its position's slot of the block table
  std::unique_ptr<std::atomic<int>[]> next_item;  // [layer]

  // Scratch, one row a token.
  float* residual = nullptr;  // [capacity][hidden_size]
  float* queries = nullptr;   // [kv head][capacity][heads of the group][head_dim], rotated, times attention_scale
  float* keys = nullptr;      // [capacity][num_kv_heads][head_dim] where they have a norm or are written whole
  float* values = nullptr;    // likewise where they are written whole
  float* added = nullptr;     // [capacity][hidden_size] where what is added to the residual has a norm
  float* attended = nullptr;  // [capacity][query_size]
  std::vector<Activations> hidden_input;    // [worker] normalized residual; worker 0's is shared unless alone
  std::vector<Activations> fine_input;      // [worker] likewise: what int8 rounds away of hidden_input
  std::vector<Activations> attended_input;  // [worker] likewise
  Activations feed_forward_input;           // shared
  std::vector<Scratch> scratch;             // [worker]
  float* exited = nullptr;  // [num_rows][hidden_size] the residuals that early rows are taken from

 private:
  void check(const Model& model, const StepBatch& batch);
  void plan_attention(const Model& model);
  void plan_wanted(const Model& model);
  void plan_exits(const Model& model);

  int capacity_, workers_, num_heads_, group_heads_, head_dim_, part_floats_;
  std::vector<uint8_t> written_;  // [slot] all zero between steps
  Memory rows_, parts_, exited_;
};

}  // namespace unspool
