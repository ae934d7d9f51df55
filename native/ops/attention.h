// Attention over the paged cache.
//
// A token attends to the cached positions before its run and then to its ancestors in the step, each at its
// logical position. Positions are taken in fixed pieces of 128: a piece's scores, their maximum, exponentials
// and mix of values are computed in an order that depends on the positions alone, and pieces are merged in
// order. So the bits of a row do not depend on how its sequence was cut into steps, on its neighbours in the
// batch or on the number of threads. Keys and values are read in the cache's type, the step's own too.
#pragma once

namespace unspool::UNSPOOL_ISA {

// scores[r][16] = queries[r] . keys, for N rows `stride` floats apart and one block of keys [head_dim][16].
// Even and odd dimensions run in two chains.
template <int N>
static void score_rows(const uint16_t* keys, int head_dim, const float* queries, int stride, float* scores) {
  f32x16 even[N], odd[N];
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) even[r] = odd[r] = zero();
  for (int d = 0; d < head_dim; d += 2) {
    const f32x16 k0 = load_half(keys + kBlock * d), k1 = load_half(keys + kBlock * (d + 1));
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) {
      const float* q = queries + static_cast<size_t>(stride) * r + d;
      even[r] = fma(set(q[0]), k0, even[r]);
      odd[r] = fma(set(q[1]), k1, odd[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) store(scores + static_cast<size_t>(kPiece) * r, even[r] + odd[r]);
}

template <int N = kScoreRows>
static inline void score_block(const uint16_t* keys, int head_dim, int rows, const float* queries, int stride,
                               float* scores) {
  for (; rows >= N; rows -= N) {
    score_rows<N>(keys, head_dim, queries, stride, scores);
    queries += static_cast<size_t>(N) * stride;
    scores += static_cast<size_t>(N) * kPiece;
  }
  if constexpr (N > 1) {
    if (rows) score_block<N - 1>(keys, head_dim, rows, queries, stride, scores);
  }
}

// mix[r][16 C] = sum over positions of weights[r][position] * values[position], for N rows, C times 16
// dimensions and the first `positions` of a piece, whose blocks of values [16][head_dim] are given.
template <int N, int C>
static inline void mix_columns(const uint16_t* const* blocks, int head_dim, const float* weights, int positions,
                               float* mix) {
  f32x16 acc[N][C];
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) {
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) acc[r][c] = zero();
  }
  for (int p = 0; p < positions; p++) {
    const uint16_t* values = blocks[p / kBlock] + static_cast<size_t>(head_dim) * (p % kBlock);
    f32x16 v[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) v[c] = load_half(values + 16 * c);
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) {
      const f32x16 w = set(weights[static_cast<size_t>(kPiece) * r + p]);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) acc[r][c] = fma(w, v[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) {
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(mix + static_cast<size_t>(head_dim) * r + 16 * c, acc[r][c]);
  }
}

template <int N>
static void mix_rows(const uint16_t* const* values, int head_dim, const float* weights, int positions, float* mix) {
  const uint16_t* blocks[kPieceBlocks];
  for (int d = 0; d < head_dim;) {
    for (int i = 0; i * kBlock < positions; i++) blocks[i] = values[i] + d;
    const bool wide = d + 64 <= head_dim;
    if (wide) {
      mix_columns<N, 4>(blocks, head_dim, weights, positions, mix + d);
    } else {
      mix_columns<N, 1>(blocks, head_dim, weights, positions, mix + d);
    }
    d += wide ? 64 : 16;
  }
}

template <int N = kMixRows>
static inline void mix_piece(const uint16_t* const* values, int head_dim, int rows, const float* weights, int positions,
                             float* mix) {
  for (; rows >= N; rows -= N) {
    mix_rows<N>(values, head_dim, weights, positions, mix);
    weights += static_cast<size_t>(N) * kPiece;
    mix += static_cast<size_t>(N) * head_dim;
  }
  if constexpr (N > 1) {
    if (rows) mix_piece<N - 1>(values, head_dim, rows, weights, positions, mix);
  }
}

struct Softened {
  float largest, sum;  // the largest score, and the sum of the weights
};

// One row's scores of a piece to weights, exp(score - the largest), for the positions that it sees, and to 0
// for those of later rows, up to `positions`.
static inline Softened soften(float* scores, int visible, int positions) {
  const int blocks = (visible + kBlock - 1) / kBlock, last = kBlock * (blocks - 1);
  const f32x16 lowest = set(-__builtin_inff());
  store(scores + last, select(first_lanes(visible - last), load(scores + last), lowest));
  f32x16 largest = lowest;
  for (int i = 0; i < blocks; i++) largest = max(largest, load(scores + kBlock * i));
  const float top = max_of(largest);
  f32x16 total = zero();
  const auto weigh = [&](int i, auto& e) {
    constexpr int n = sizeof e / sizeof e[0];
    for (int k = 0; k < n; k++) e[k] = load(scores + kBlock * (i + k)) - set(top);
    exp(e);
    for (int k = 0; k < n; k++) {
      store(scores + kBlock * (i + k), e[k]);
      total = total + e[k];
    }
  };
  int i = 0;
  f32x16 many[kExpVectors], one[1];
  for (; i + kExpVectors <= blocks; i += kExpVectors) weigh(i, many);
  for (; i < blocks; i++) weigh(i, one);
  for (; kBlock * i < positions; i++) store(scores + kBlock * i, zero());
  return {top, sum(total)};
}

// The rows of one item: token by token, and within a token head by head.
struct QueryRows {
  const Step& step;
  const AttentionItem& item;
  int count() const { return (item.last - item.first) * item.heads; }
  int token(int r) const { return item.first + r / item.heads; }
  int head(int r) const { return item.first_head + r % item.heads; }
  // Positions of the piece that row r may see: at most kPiece, none or fewer where the piece is after it.
  int visible(int r, int piece) const {
    const int n = step.batch.positions[token(r)] + 1 - piece * kPiece;
    return n < kPiece ? n : kPiece;
  }
};

// Copies the keys and values of a draft's path, which lie elsewhere, to blocks in the order of positions.
static inline void gather_path(const Model& model, const Step& step, int layer, int kv_head, const AttentionItem& item,
                               uint16_t* gathered) {
  const StepBatch& b = step.batch;
  const int context = b.context_lens[item.run], first = context / kBlock, head_dim = model.spec.head_dim;
  const size_t block_halves = static_cast<size_t>(2) * kBlock * head_dim;
  const auto copy = [&](int slot, int position) {
    copy_head_slot(model.cache.keys(slot / kBlock, layer, kv_head), slot % kBlock,
                   gathered + block_halves * (position / kBlock - first), position % kBlock, head_dim);
  };
  for (int p = first * kBlock; p < context; p++) copy(b.table(item.run)[first] * kBlock + p % kBlock, p);
  for (int t = item.first; t != -1; t = b.parents[t]) copy(b.slots[t], b.positions[t]);
}

// Where the item finds the keys of logical block i.
struct KeyBlocks {
  const Model& model;
  const int32_t* table;
  int layer, kv_head;
  int gathered_from;  // first block that is gathered
  const uint16_t* gathered;

  const uint16_t* operator()(int i) const {
    if (i < gathered_from) return model.cache.keys(table[i], layer, kv_head);
    return gathered + static_cast<size_t>(2) * kBlock * model.spec.head_dim * (i - gathered_from);
  }
};

static inline void prefetch_halves(const uint16_t* p, int n) {
  for (int i = 0; i < n; i += 32) prefetch(p + i);
}

// One piece for rows `first` to the last of the item: their maxima, sums of exponentials, and mixes. A row
// gives later rows' positions the weight 0, and their values are finite whatever made them (see project).
static inline void attend_piece(const QueryRows& rows, const KeyBlocks& key_blocks, int piece, int first, int head_dim,
                                const float* queries, int stride, const Scratch& s) {
  const int end = rows.count(), positions = rows.visible(end - 1, piece);
  float* scores = s.scores + static_cast<size_t>(kPiece) * first;
  const uint16_t* values[kPieceBlocks];
  const uint16_t* next = key_blocks(piece * kPieceBlocks);
  for (int i = 0; i * kBlock < positions; i++) {
    const uint16_t* keys = next;
    values[i] = keys + static_cast<size_t>(kBlock) * head_dim;
    prefetch_halves(values[i], kBlock * head_dim);
    if ((i + 1) * kBlock < positions) {
      next = key_blocks(piece * kPieceBlocks + i + 1);
      prefetch_halves(next, kBlock * head_dim);
    }
    score_block(keys, head_dim, end - first, queries + static_cast<size_t>(stride) * first, stride,
                scores + kBlock * i);
  }
  for (int r = first; r < end; r++) {
    const Softened softened = soften(s.scores + static_cast<size_t>(kPiece) * r, rows.visible(r, piece), positions);
    s.largest[r] = softened.largest;
    s.sum[r] = softened.sum;
  }
  mix_piece(values, head_dim, end - first, scores, positions, s.mix + static_cast<size_t>(head_dim) * first);
}

// Merges the next piece's mix, maximum and sum into those of the pieces before it.
static inline void merge_piece(int head_dim, const float* mix, float largest, float sum, float* merged,
                               float* merged_largest, float* merged_sum) {
  const float top = *merged_largest > largest ? *merged_largest : largest;
  f32x16 factors[2] = {set(*merged_largest - top), set(largest - top)};
  exp(factors);
  for (int d = 0; d < head_dim; d += 16) {
    store(merged + d, fma(load(mix + d), factors[1], load(merged + d) * factors[0]));
  }
  float old_factor[16], new_factor[16];
  store(old_factor, factors[0]);
  store(new_factor, factors[1]);
  *merged_sum = __builtin_fmaf(sum, new_factor[0], *merged_sum * old_factor[0]);
  *merged_largest = top;
}

static inline void copy_floats(const float* from, int n, float* to) {
  for (int i = 0; i < n; i += 16) store(to + i, load(from + i));
}

// A part of Step::part: the mix, the maximum and the sum of one piece.
static inline void write_part(const Scratch& s, int r, int head_dim, float* part) {
  copy_floats(s.mix + static_cast<size_t>(head_dim) * r, head_dim, part);
  part[head_dim] = s.largest[r];
  part[head_dim + 1] = s.sum[r];
}

static inline void write_attended(const float* merged, float sum, int head_dim, float* out) {
  const f32x16 scale = set(1.0f / sum);
  for (int d = 0; d < head_dim; d += 16) store(out + d, load(merged + d) * scale);
}

// One item: its rows' attended values, or its piece's parts.
static inline void attend(const Model& model, Step& step, int layer, const AttentionItem& item,
                          const Scratch& s) {
  const Spec& spec = model.spec;
  const int head_dim = spec.head_dim, kv_head = item.first_head / spec.group_heads();
  const QueryRows rows{step, item};
  const float* queries = step.query(item.first_head, item.first);
  const int stride = head_dim * (item.heads == 1 ? spec.group_heads() : 1);
  int gathered_from = step.batch.max_blocks;
  if (!step.in_place[item.run]) {
    gather_path(model, step, layer, kv_head, item, s.path);
    gathered_from = step.batch.context_lens[item.run] / kBlock;
  }
  const KeyBlocks key_blocks{model, step.batch.table(item.run), layer, kv_head, gathered_from, s.path};
  for (int piece = item.first_piece; piece < item.last_piece; piece++) {
    int first = 0;
    while (rows.visible(first, piece) <= 0) first++;
    attend_piece(rows, key_blocks, piece, first, head_dim, queries, stride, s);
    for (int r = first; r < rows.count(); r++) {
      float* merged = s.merged + static_cast<size_t>(head_dim) * r;
      const float* mix = s.mix + static_cast<size_t>(head_dim) * r;
      if (step.split_pieces) {
        write_part(s, r, head_dim, step.part(rows.token(r), rows.head(r), piece));
      } else if (piece == 0) {
        copy_floats(mix, head_dim, merged);
        s.merged_largest[r] = s.largest[r];
        s.merged_sum[r] = s.sum[r];
      } else {
        merge_piece(head_dim, mix, s.largest[r], s.sum[r], merged, &s.merged_largest[r], &s.merged_sum[r]);
      }
    }
  }
  if (step.split_pieces) return;
  for (int r = 0; r < rows.count(); r++) {
    write_attended(s.merged + static_cast<size_t>(head_dim) * r, s.merged_sum[r], head_dim,
                   step.attended + static_cast<size_t>(spec.query_size()) * rows.token(r) + head_dim * rows.head(r));
  }
}

// Token t's attended row [query_size], from its parts, merged in the order that attend merges pieces in.
static inline void merge_parts(const Model& model, Step& step, int t, float* out) {
  const int head_dim = model.spec.head_dim, pieces = step.batch.positions[t] / kPiece + 1;
  alignas(64) float merged[kMaxHeadDim];
  for (int head = 0; head < model.spec.num_heads; head++) {
    const float* part = step.part(t, head, 0);
    copy_floats(part, head_dim, merged);
    float largest = part[head_dim], sum = part[head_dim + 1];
    for (int piece = 1; piece < pieces; piece++) {
      part = step.part(t, head, piece);
      merge_piece(head_dim, part, part[head_dim], part[head_dim + 1], merged, &largest, &sum);
    }
    write_attended(merged, sum, head_dim, out + head_dim * head);
  }
}

}  // namespace unspool::UNSPOOL_ISA
