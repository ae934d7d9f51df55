// Attention over the paged cache.
//
// A token attends to the cached positions before its run and then to its ancestors in the step, each at its
// logical position. Positions are taken in fixed pieces of 128: a piece's scores, their maximum, exponentials
// and mix of values are computed in an order that depends on the positions alone, and pieces are merged in
// order. So the bits of a row do not depend on how its sequence was cut into steps, on its neighbours in the
// batch or on the number of threads. Keys and values are read in the cache's type, the step's own too.
// Where a layer has a window a token sees only its last positions: pieces, and blocks of a piece, that are wholly
// before them are skipped.
#pragma once

namespace unspool::UNSPOOL_ISA {

// An item's queries as floats, `stride` apart, and their scores against one block of keys.
template <class Format>
struct FloatQueries {
  const float* floats;
  int stride;

  FloatQueries from(int r) const { return {floats + static_cast<size_t>(stride) * r, stride}; }
  // scores[r][16] = query r . keys, for N queries. Even and odd dimensions run in two chains.
  template <int N>
  void score(const HeadLayout& layout, const uint8_t* head, float* scores) const {
    const auto* keys = reinterpret_cast<const typename Format::Element*>(head);
    f32x16 even[N], odd[N];
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) even[r] = odd[r] = zero();
    for (int d = 0; d < layout.head_dim; d += 2) {
      const f32x16 k0 = Format::read(keys + kBlock * d), k1 = Format::read(keys + kBlock * (d + 1));
#pragma GCC unroll 16
      for (int r = 0; r < N; r++) {
        const float* q = floats + static_cast<size_t>(stride) * r + d;
        even[r] = fma(set(q[0]), k0, even[r]);
        odd[r] = fma(set(q[1]), k1, odd[r]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) store(scores + static_cast<size_t>(kPiece) * r, even[r] + odd[r]);
  }
};

// Against int8 keys a query is an integer too, of fifteen bits: 128 coarse + fine, both int8, times a scale. The sum
// of products is exact in int32, and what the query's rounding moves a score by is a hundredth of what the keys' does.
constexpr float kMostOfQuery = 127.0f * 128.0f;

struct ByteQueries {
  const int8_t* codes;   // [r][coarse head_dim | fine head_dim]
  const int32_t* sums;   // [r][2] of the codes
  const float* scales;   // [r]
  int head_dim;

  ByteQueries from(int r) const {
    return {codes + static_cast<size_t>(2) * head_dim * r, sums + 2 * r, scales + r, head_dim};
  }
  template <int N>
  void score(const HeadLayout& layout, const uint8_t* head, float* scores) const {
    i32x16 coarse[N], fine[N];
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) {
      coarse[r] = start_signed(sums[2 * r]);
      fine[r] = start_signed(sums[2 * r + 1]);
    }
    for (int d = 0; d < head_dim; d += 4) {
      const u8x64 keys = load_weights(head + kBlock * d);
#pragma GCC unroll 16
      for (int r = 0; r < N; r++) {
        const int8_t* q = codes + static_cast<size_t>(2) * head_dim * r + d;
        coarse[r] = dot_signed(coarse[r], keys, q);
        fine[r] = dot_signed(fine[r], keys, q + head_dim);
      }
    }
    const f32x16 key_scales = load_half(reinterpret_cast<const uint16_t*>(head + layout.key_scales_at()));
#pragma GCC unroll 16
    for (int r = 0; r < N; r++) {
      const f32x16 products = to_float(shift_left<7>(coarse[r]) + fine[r]);
      store(scores + static_cast<size_t>(kPiece) * r, products * set(this->scales[r]) * key_scales);
    }
  }
};

// One query as int8 codes, whose sums go to sums[2]; returns their scale. A query that is not finite has the scale NaN.
static inline float encode_query(const float* query, int head_dim, int8_t* codes, int32_t* sums) {
  f32x16 largest = zero(), broken = zero();
  for (int d = 0; d < head_dim; d += 16) {
    largest = max(largest, abs(load(query + d)));
    broken = fma(load(query + d), zero(), broken);
  }
  const float most = sum(broken) == 0.0f ? max_of(largest) : __builtin_nanf("");
  const bool has_codes = most >= 0x1p-112f;  // kMostOfQuery divided by less may be beyond float32
  const f32x16 inverse = set(has_codes ? kMostOfQuery / most : 0.0f);
  i32x16 coarse_sum = set_int(0), fine_sum = set_int(0);
  for (int d = 0; d < head_dim; d += 16) {
    const f32x16 code = has_codes ? load(query + d) * inverse : zero();
    const i32x16 coarse = to_int(code * set(1.0f / 128.0f));
    const i32x16 fine = to_int(fma(to_float(coarse), set(-128.0f), code));
    store_bytes(codes + d, coarse);
    store_bytes(codes + head_dim + d, fine);
    coarse_sum = coarse_sum + coarse;
    fine_sum = fine_sum + fine;
  }
  sums[0] = sum_int(coarse_sum);
  sums[1] = sum_int(fine_sum);
  return has_codes ? most / kMostOfQuery : most * 0.0f;
}

template <class Format>
static inline FloatQueries<Format> prepare_queries(Format, const float* floats, int stride, int, int, const Scratch&) {
  return {floats, stride};
}
static inline ByteQueries prepare_queries(ByteFormat, const float* floats, int stride, int rows, int head_dim,
                                          const Scratch& s) {
  for (int r = 0; r < rows; r++) {
    s.query_scales[r] = encode_query(floats + static_cast<size_t>(stride) * r, head_dim,
                                     s.query_codes + static_cast<size_t>(2) * head_dim * r, s.query_sums + 2 * r);
  }
  return {s.query_codes, s.query_sums, s.query_scales, head_dim};
}

// scores[r][16] of `rows` queries against one block of keys.
template <int N = kScoreRows, class Queries>
static inline void score_block(const Queries& queries, const HeadLayout& layout, const uint8_t* head, int rows,
                               float* scores) {
  int r = 0;
  for (; r + N <= rows; r += N) {
    queries.from(r).template score<N>(layout, head, scores + static_cast<size_t>(kPiece) * r);
  }
  if constexpr (N > 1) {
    if (r < rows) {
      score_block<N - 1>(queries.from(r), layout, head, rows - r, scores + static_cast<size_t>(kPiece) * r);
    }
  }
}

// The positions of a piece, first to end - 1, that a row sees or several rows see between them.
struct Seen {
  int first, end;
  int first_block() const { return first / kBlock; }
  int end_block() const { return (end + kBlock - 1) / kBlock; }
};

// mix[r][16 C] = sum over positions of weights[r][position] * values[position], for N rows, C times 16
// dimensions and the piece's positions from the block of the first seen on; the blocks of values [16][head_dim] are
// given.
template <class Format, int N, int C>
static inline void mix_columns(const typename Format::Element* const* blocks, int head_dim, const float* weights,
                               Seen seen, float* mix) {
  f32x16 acc[N][C];
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) {
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) acc[r][c] = zero();
  }
  for (int first = kBlock * seen.first_block(); first < seen.end; first += kBlock) {
    const auto* values = blocks[first / kBlock];
    const int end = seen.end - first < kBlock ? seen.end : first + kBlock;
    for (int p = first; p < end; p++, values += head_dim) {
      f32x16 w[N];
#pragma GCC unroll 16
      for (int r = 0; r < N; r++) w[r] = set(weights[static_cast<size_t>(kPiece) * r + p]);
#pragma GCC unroll 4
      for (int c = 0; c < C; c++) {
        const f32x16 v = Format::read(values + 16 * c);
#pragma GCC unroll 16
        for (int r = 0; r < N; r++) acc[r][c] = fma(w[r], v, acc[r][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < N; r++) {
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) store(mix + static_cast<size_t>(head_dim) * r + 16 * c, acc[r][c]);
  }
}

template <class Format, int N>
static void mix_rows(const HeadLayout& layout, const uint8_t* const* heads, const float* weights, Seen seen,
                     float* mix) {
  const int head_dim = layout.head_dim;
  const typename Format::Element* blocks[kPieceBlocks];
  for (int d = 0; d < head_dim;) {
    for (int i = seen.first_block(); i < seen.end_block(); i++) {
      blocks[i] = reinterpret_cast<const typename Format::Element*>(heads[i] + layout.values_at()) + d;
    }
    const bool wide = d + 64 <= head_dim;
    if (wide) {
      mix_columns<Format, N, 4>(blocks, head_dim, weights, seen, mix + d);
    } else {
      mix_columns<Format, N, 1>(blocks, head_dim, weights, seen, mix + d);
    }
    d += wide ? 64 : 16;
  }
}

template <class Format, int N = kMixRows>
static inline void mix_piece(const HeadLayout& layout, const uint8_t* const* heads, int rows, const float* weights,
                             Seen seen, float* mix) {
  for (; rows >= N; rows -= N) {
    mix_rows<Format, N>(layout, heads, weights, seen, mix);
    weights += static_cast<size_t>(N) * kPiece;
    mix += static_cast<size_t>(N) * layout.head_dim;
  }
  if constexpr (N > 1) {
    if (rows) mix_piece<Format, N - 1>(layout, heads, rows, weights, seen, mix);
  }
}

// Weights of values to weights of their int8 codes.
static inline void scale_weights(const HeadLayout& layout, const uint8_t* const* heads, Seen seen, float* weights) {
  for (int i = seen.first_block(); i < seen.end_block(); i++) {
    const f32x16 scales = load_half(reinterpret_cast<const uint16_t*>(heads[i] + layout.value_scales_at()));
    store(weights + kBlock * i, load(weights + kBlock * i) * scales);
  }
}

struct Softened {
  float largest, sum;  // the largest score, and the sum of the weights
};

// One row's scores of a piece, capped where cap is not 0, to weights, exp(score - the largest), for the positions that
// the row sees, and to 0 for those that other rows see.
static inline Softened soften(float* scores, Seen own, Seen seen, float cap) {
  const int first = own.first_block(), end = own.end_block(), last = kBlock * (end - 1);
  if (cap != 0) {
    for (int i = kBlock * first; i < kBlock * end; i += 16) {
      store(scores + i, set(cap) * tanh(load(scores + i) * set(1.0f / cap)));
    }
  }
  const f32x16 lowest = set(-__builtin_inff());
  store(scores + last, select(first_lanes(own.end - last), load(scores + last), lowest));
  const int hidden = own.first - kBlock * first;
  if (hidden) store(scores + kBlock * first, select(first_lanes(hidden), lowest, load(scores + kBlock * first)));
  f32x16 largest = lowest;
  for (int i = first; i < end; i++) largest = max(largest, load(scores + kBlock * i));
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
  int i = first;
  f32x16 many[kExpVectors], one[1];
  for (; i + kExpVectors <= end; i += kExpVectors) weigh(i, many);
  for (; i < end; i++) weigh(i, one);
  for (i = seen.first_block(); i < first; i++) store(scores + kBlock * i, zero());
  for (i = end; i < seen.end_block(); i++) store(scores + kBlock * i, zero());
  return {top, sum(total)};
}

// The piece that holds the first position that a token sees: those of its last `window`, or all where that is 0.
static inline int first_piece(int position, int window) {
  return window && position >= window ? (position + 1 - window) / kPiece : 0;
}

// The rows of one item: token by token, and within a token head by head.
struct QueryRows {
  const Step& step;
  const AttentionItem& item;
  int window;
  int count() const { return (item.last - item.first) * item.heads; }
  int token(int r) const { return item.first + r / item.heads; }
  int head(int r) const { return item.first_head + r % item.heads; }
  int position(int r) const { return step.batch.positions[token(r)]; }
  // Positions of the piece that row r sees: none where it ends at 0 or before, or begins at kPiece or after.
  Seen seen(int r, int piece) const {
    const int end = position(r) + 1 - piece * kPiece, first = window ? end - window : 0;
    return {first < 0 ? 0 : first, end < kPiece ? end : kPiece};
  }
};

// Copies the keys and values of a draft's path, which lie elsewhere, to blocks in the order of positions.
static inline void gather_path(const Model& model, const Step& step, int layer, int kv_head, const AttentionItem& item,
                               uint8_t* gathered) {
  const StepBatch& b = step.batch;
  const HeadLayout& layout = model.cache.layout;
  const int context = b.context_lens[item.run], first = context / kBlock;
  const auto copy = [&](int slot, int position) {
    layout.copy_slot(model.cache.head(slot / kBlock, layer, kv_head), slot % kBlock,
                     gathered + layout.bytes() * (position / kBlock - first), position % kBlock);
  };
  for (int p = first * kBlock; p < context; p++) copy(b.table(item.run)[first] * kBlock + p % kBlock, p);
  for (int t = item.first; t != -1; t = b.parents[t]) copy(b.slots[t], b.positions[t]);
}

// Where the item finds its head's part of logical block i.
struct HeadBlocks {
  const Cache& cache;
  const int32_t* table;
  int layer, kv_head;
  int gathered_from;  // first block that is gathered
  const uint8_t* gathered;

  const uint8_t* operator()(int i) const {
    if (i < gathered_from) return cache.head(table[i], layer, kv_head);
    return gathered + cache.layout.bytes() * (i - gathered_from);
  }
};

static inline void prefetch_bytes(const uint8_t* p, size_t n) {
  for (size_t i = 0; i < n; i += 64) prefetch(p + i);
}

// One piece for rows `first` to `end` - 1 of the item, which all see some of it: their maxima, sums of exponentials,
// and mixes. A row gives other rows' positions the weight 0, and their values are finite whatever made them (see
// cache_format.h).
template <class Format, class Queries>
static inline void attend_piece(const QueryRows& rows, const HeadBlocks& blocks, int piece, int first, int end,
                                const Queries& queries, float cap, const Scratch& s) {
  const HeadLayout& layout = blocks.cache.layout;
  const Seen seen{rows.seen(first, piece).first, rows.seen(end - 1, piece).end};
  float* scores = s.scores + static_cast<size_t>(kPiece) * first;
  const uint8_t* heads[kPieceBlocks];
  const uint8_t* next = blocks(piece * kPieceBlocks + seen.first_block());
  for (int i = seen.first_block(); i < seen.end_block(); i++) {
    heads[i] = next;
    prefetch_bytes(next + layout.values_at(), layout.bytes() - layout.values_at());
    if (i + 1 < seen.end_block()) {
      next = blocks(piece * kPieceBlocks + i + 1);
      prefetch_bytes(next, layout.values_at());
    }
    score_block(queries.from(first), layout, heads[i], end - first, scores + kBlock * i);
  }
  for (int r = first; r < end; r++) {
    float* weights = s.scores + static_cast<size_t>(kPiece) * r;
    const Softened softened = soften(weights, rows.seen(r, piece), seen, cap);
    if (layout.scaled()) scale_weights(layout, heads, seen, weights);
    s.largest[r] = softened.largest;
    s.sum[r] = softened.sum;
  }
  mix_piece<Format>(layout, heads, end - first, scores, seen, s.mix + static_cast<size_t>(layout.head_dim) * first);
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
template <class Format>
static inline void attend(const Model& model, Step& step, int layer, const AttentionItem& item, const Scratch& s) {
  const Spec& spec = model.spec;
  const int head_dim = spec.head_dim, kv_head = item.first_head / spec.group_heads();
  const QueryRows rows{step, item, spec.window(layer)};
  const int stride = head_dim * (item.heads == 1 ? spec.group_heads() : 1);
  const auto queries =
      prepare_queries(Format(), step.query(item.first_head, item.first), stride, rows.count(), head_dim, s);
  int gathered_from = step.batch.max_blocks;
  if (!step.in_place[item.run]) {
    gather_path(model, step, layer, kv_head, item, s.path);
    gathered_from = step.batch.context_lens[item.run] / kBlock;
  }
  const HeadBlocks blocks{model.cache, step.batch.table(item.run), layer, kv_head, gathered_from, s.path};
  for (int piece = item.first_piece; piece < item.last_piece; piece++) {
    int first = 0, end = rows.count();  // positions ascend
    while (first < end && rows.seen(first, piece).end <= 0) first++;
    while (first < end && rows.seen(end - 1, piece).first >= kPiece) end--;
    if (first == end) continue;
    attend_piece<Format>(rows, blocks, piece, first, end, queries, spec.attention_softcap, s);
    for (int r = first; r < end; r++) {
      float* merged = s.merged + static_cast<size_t>(head_dim) * r;
      const float* mix = s.mix + static_cast<size_t>(head_dim) * r;
      if (step.split_pieces) {
        write_part(s, r, head_dim, step.part(rows.token(r), rows.head(r), piece));
      } else if (piece == first_piece(rows.position(r), rows.window)) {
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
static inline void merge_parts(const Model& model, Step& step, int layer, int t, float* out) {
  const int head_dim = model.spec.head_dim, position = step.batch.positions[t];
  const int begin = first_piece(position, model.spec.window(layer)), end = position / kPiece + 1;
  alignas(64) float merged[kMaxHeadDim];
  for (int head = 0; head < model.spec.num_heads; head++) {
    const float* part = step.part(t, head, begin);
    copy_floats(part, head_dim, merged);
    float largest = part[head_dim], sum = part[head_dim + 1];
    for (int piece = begin + 1; piece < end; piece++) {
      part = step.part(t, head, piece);
      merge_piece(head_dim, part, part[head_dim], part[head_dim + 1], merged, &largest, &sum);
    }
    write_attended(merged, sum, head_dim, out + head_dim * head);
  }
}

}  // namespace unspool::UNSPOOL_ISA
