#include "step.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace unspool {
namespace {

// Tokens up to which every worker normalizes all of them: measured, two barriers a layer cost more.
constexpr int kAlone = 4;
// Items of attention that each worker should find at least, so that none waits long for another.
constexpr int kItemsPerWorker = 4;
constexpr int kMaxCapacity = 1 << 20;

// Hands out parts of one allocation, each on its own cache line.
class Arena {
 public:
  template <class T>
  T* take(size_t count) {
    const size_t at = used_;
    used_ = (used_ + sizeof(T) * count + 63) / 64 * 64;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  size_t used() const { return used_; }
  void restart(uint8_t* base) {
    base_ = base;
    used_ = 0;
  }

 private:
  uint8_t* base_ = nullptr;
  size_t used_ = 0;
};

struct Needs {
  bool codes = false, floats = false;
  void of(const Matrix& matrix) { (is_quantized(matrix.type) ? codes : floats) = true; }
};

Activations take_activations(Arena& arena, int tokens, int columns, Needs needs) {
  Activations a;
  a.columns = columns;
  const size_t places = static_cast<size_t>(tokens) * (columns / kGroup);
  if (needs.codes) {
    a.codes = arena.take<int8_t>(kGroup * places);
    a.scales = arena.take<float>(places);
    a.offsets = arena.take<float>(places);
    a.sums = arena.take<int32_t>(places);
    a.first_sums = arena.take<int32_t>(places);
  }
  if (needs.floats) a.floats = arena.take<float>(static_cast<size_t>(tokens) * columns);
  return a;
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("malformed step: " + what); }

std::string at(const char* array, int i, int value) {
  return std::string(array) + "[" + std::to_string(i) + "] is " + std::to_string(value);
}

void check_range(const char* array, int i, int value, int low, int high) {
  if (value < low || value >= high) {
    refuse(at(array, i, value) + ", allowed are " + std::to_string(low) + " to " + std::to_string(high - 1));
  }
}

}  // namespace

Step::Step(const Model& model, int workers, int capacity)
    : capacity_(capacity), workers_(workers), num_heads_(model.spec.num_heads), group_heads_(model.spec.group_heads()),
      head_dim_(model.spec.head_dim), part_floats_(model.spec.head_dim + 16) {
  if (capacity < 1 || capacity > kMaxCapacity) {
    throw std::invalid_argument("a step holds 1 to " + std::to_string(kMaxCapacity) + " tokens, not " +
                                std::to_string(capacity));
  }
  const Spec& spec = model.spec;
  const size_t vocabulary = spec.vocab_size, hidden_size = spec.hidden_size;
  logits = Output(vocabulary, (vocabulary + 15) / 16 * 16 + 80);  // no power of two: those share cache sets
  hidden = Output(hidden_size, hidden_size);
  Needs of_hidden, of_attended, of_feed_forward, of_fine;
  for (const Layer& layer : model.layers) {
    for (const Matrix* m : {&layer.query, &layer.key, &layer.value, &layer.up}) of_hidden.of(*m);
    if (spec.gated) of_hidden.of(layer.gate);
    of_attended.of(layer.output);
    of_fine.codes |= is_quantized(layer.value.type);
    of_feed_forward.of(layer.down);
  }
  of_hidden.of(model.head);
  Arena arena;
  const auto lay_out = [&] {
    const size_t t = capacity;
    residual = arena.take<float>(t * spec.hidden_size);
    queries = arena.take<float>(t * spec.query_size());
    const bool scaled = model.cache.layout.scaled();
    const size_t kv_floats = t * spec.num_kv_heads * spec.head_dim;
    if (scaled || spec.query_key_norm != QueryKeyNorm::None) keys = arena.take<float>(kv_floats);
    if (scaled) values = arena.take<float>(kv_floats);
    if (spec.norm_after) added = arena.take<float>(t * spec.hidden_size);
    attended = arena.take<float>(t * spec.query_size());
    hidden_input.clear();
    fine_input.clear();
    attended_input.clear();
    for (int w = 0; w < workers; w++) {
      const int tokens = w == 0 ? capacity : std::min(kAlone, capacity);
      hidden_input.push_back(take_activations(arena, tokens, spec.hidden_size, of_hidden));
      fine_input.push_back(take_activations(arena, tokens, spec.hidden_size, of_fine));
      attended_input.push_back(take_activations(arena, tokens, spec.query_size(), of_attended));
    }
    feed_forward_input = take_activations(arena, capacity, spec.intermediate_size, of_feed_forward);
  };
  lay_out();
  rows_ = Memory(arena.used());
  arena.restart(rows_.data());
  lay_out();
  for (int w = 0; w < workers; w++) {
    scratch.emplace_back(model.cache.layout, spec.group_heads(), std::max(spec.hidden_size, spec.query_size()),
                         capacity);
  }
  next_item = std::make_unique<std::atomic<int>[]>(spec.num_layers);
}

void Step::plan(const Model& model, const StepBatch& new_batch) {
  check(model, new_batch);
  logits.resize(new_batch.num_rows);
  hidden.resize(new_batch.num_hidden);
  batch = new_batch;
  all.tokens.resize(batch.num_tokens);
  std::iota(all.tokens.begin(), all.tokens.end(), 0);
  plan_attention(model);
  plan_wanted(model);
  plan_exits(model);
  for (RowSet* rows : {&all, &wanted}) {
    if (rows->count()) rows->tiling = Tiling(rows->count(), model.kernels->tile);
    rows->alone = workers_ > 1 && rows->count() <= kAlone;
  }
  if (batch.num_rows) head_tiling = Tiling(batch.num_rows, model.kernels->tile);
  head_alone = workers_ > 1 && batch.num_rows <= kAlone;
  for (int layer = 0; layer < model.spec.num_layers; layer++) next_item[layer] = 0;
}

void Step::plan_attention(const Model& model) {
  const int group = model.spec.group_heads(), kv_heads = model.spec.num_kv_heads;
  const int tile_tokens = std::max(1, kQueryRows / group);
  all.items.clear();
  in_place.assign(batch.num_runs, 1);
  positions = 0;
  std::vector<AttentionItem> tiles;  // all heads, all pieces
  for (int run = 0; run < batch.num_runs; run++) {
    const int first = batch.run_starts[run], end = batch.run_starts[run + 1];
    for (int t = first; t < end; t++) {
      const int position = batch.positions[t];
      const bool next_in_line = batch.parents[t] == (t == first ? -1 : t - 1);
      const int32_t block = batch.table(run)[position / kBlock];  // anything, where it is not the slot's
      const bool its_slot = batch.slots[t] / kBlock == block && batch.slots[t] % kBlock == position % kBlock;
      if (!next_in_line || !its_slot) in_place[run] = 0;
      positions = std::max(positions, position + 1);
    }
    const int tokens = in_place[run] ? tile_tokens : 1;
    for (int t = first; t < end; t += tokens) {
      const int last = std::min(t + tokens, end);
      tiles.push_back({run, t, last, 0, group, 0, batch.positions[last - 1] / kPiece + 1});
    }
  }
  max_pieces = (positions + kPiece - 1) / kPiece;
  const int wanted = kItemsPerWorker * workers_, found = static_cast<int>(tiles.size()) * kv_heads;
  split_pieces = found < wanted && max_pieces > 1;
  const int heads = found * (split_pieces ? max_pieces : 1) < wanted ? 1 : group;
  // The longest come first, so that the last ones to be handed out are short.
  for (auto tile = tiles.rbegin(); tile != tiles.rend(); ++tile) {
    for (int h = 0; h < model.spec.num_heads; h += heads) {
      const int pieces = split_pieces ? 1 : tile->last_piece;
      for (int piece = 0; piece < tile->last_piece; piece += pieces) {
        all.items.push_back({tile->run, tile->first, tile->last, h, heads, piece, piece + pieces});
      }
    }
  }
  if (!split_pieces) return;
  const size_t bytes = sizeof(float) * part_floats_ * max_pieces * num_heads_ * batch.num_tokens;
  if (parts_.size() < bytes) parts_ = Memory(bytes);
}

void Step::plan_wanted(const Model& model) {
  std::vector<uint8_t> is_wanted(batch.num_tokens, 0);
  for (int r = 0; r < batch.num_rows; r++) {
    if (!batch.is_early(r, model.spec.num_layers)) is_wanted[batch.rows[r]] = 1;
  }
  for (int h = 0; h < batch.num_hidden; h++) is_wanted[batch.hidden_rows[h]] = 1;
  wanted.tokens.clear();
  for (int t = 0; t < batch.num_tokens; t++) {
    if (is_wanted[t]) wanted.tokens.push_back(t);
  }
  wanted.items.clear();
  for (const AttentionItem& item : all.items) {
    const auto first = is_wanted.begin() + item.first, last = is_wanted.begin() + item.last;
    if (std::find(first, last, 1) != last) wanted.items.push_back(item);
  }
}

void Step::plan_exits(const Model& model) {
  const int num_layers = model.spec.num_layers;
  early_rows.clear();
  early_starts.assign(num_layers + 1, 0);
  for (int r = 0; r < batch.num_rows; r++) {
    if (!batch.is_early(r, num_layers)) continue;
    early_rows.push_back(r);
    early_starts[batch.exits[r] + 1]++;
  }
  if (early_rows.empty()) return;
  std::partial_sum(early_starts.begin(), early_starts.end(), early_starts.begin());
  std::sort(early_rows.begin(), early_rows.end(), [&](int a, int b) { return batch.exits[a] < batch.exits[b]; });
  const size_t bytes = sizeof(float) * model.spec.hidden_size * batch.num_rows;
  if (exited_.size() < bytes) exited_ = Memory(bytes);
  exited = exited_.as<float>();
}

void Step::check(const Model& model, const StepBatch& b) {
  const int num_slots = model.cache.num_blocks * kBlock, widest = model.spec.widest_window();
  if (b.num_tokens < 1 || b.num_tokens > capacity_) {
    refuse(std::to_string(b.num_tokens) + " tokens, allowed are 1 to " + std::to_string(capacity_));
  }
  if (b.num_rows > capacity_ || b.num_hidden > capacity_) {
    refuse("more rows are wanted than the " + std::to_string(capacity_) + " tokens that a step may hold");
  }
  if (b.num_runs < 1 || b.run_starts[0] != 0 || b.run_starts[b.num_runs] != b.num_tokens) {
    refuse("run_starts must begin at 0 and end at the number of tokens");
  }
  for (int run = 0; run < b.num_runs; run++) {
    const int first = b.run_starts[run], end = b.run_starts[run + 1], context = b.context_lens[run];
    if (end <= first || end > b.num_tokens) refuse(at("run_starts", run + 1, end) + "; every run needs a token");
    check_range("context_lens", run, context, 0, num_slots);
    const int32_t* table = b.table(run);
    const int unseen_blocks = widest && context >= widest ? (context + 1 - widest) / kBlock : 0;
    for (int i = 0; i < (context + kBlock - 1) / kBlock; i++) {
      if (i >= b.max_blocks) refuse(at("context_lens", run, context) + ", longer than the block table");
      if (i < unseen_blocks && table[i] == -1) continue;  // freed
      check_range("block_table", run, table[i], 0, model.cache.num_blocks);
    }
    for (int t = first; t < end; t++) {
      const int parent = b.parents[t];
      check_range("tokens", t, b.tokens[t], 0, model.spec.vocab_size);
      check_range("slots", t, b.slots[t], 0, num_slots);
      if (parent != -1) check_range("parents", t, parent, first, t);
      const int position = parent == -1 ? context : b.positions[parent] + 1;
      if (b.positions[t] != position) {
        refuse(at("positions", t, b.positions[t]) + ", its parent's next is " + std::to_string(position));
      }
      if (const int learned = model.spec.learned_positions) check_range("positions", t, position, 0, learned);
      if (position / kBlock >= b.max_blocks) refuse(at("positions", t, position) + ", beyond the block table");
      check_range("positions", t, position, 0, num_slots);
    }
  }
  written_.resize(num_slots);
  bool twice = false;
  for (int t = 0; t < b.num_tokens; t++) twice |= written_[b.slots[t]]++ > 0;
  for (int t = 0; t < b.num_tokens; t++) written_[b.slots[t]] = 0;
  if (twice) refuse("two tokens go to one slot");
  for (int r = 0; r < b.num_rows; r++) {
    check_range("rows", r, b.rows[r], 0, b.num_tokens);
    if (b.exits) check_range("exits", r, b.exits[r], 1, model.spec.num_layers + 1);
  }
  for (int h = 0; h < b.num_hidden; h++) check_range("hidden_rows", h, b.hidden_rows[h], 0, b.num_tokens);
}

}  // namespace unspool
