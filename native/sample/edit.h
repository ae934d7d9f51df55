// Rules that change some tokens' logits, or ban them.
#pragma once
// Included after row.h.

namespace unspool::UNSPOOL_ISA {

// The tokens of a chain's entry, each at most once, and what it adds to them.
struct Edits {
  const int32_t* tokens;
  const float* amounts;
  int64_t n;
};

// Makes a dense row one that can be changed in place, with maxima that can be.
static void own(Row& row, const SampleScratch& scratch) {
  settle(row, scratch);
  if (row.z != row.out) {
    std::memcpy(row.out, row.z, static_cast<size_t>(row.n) * sizeof(float));
    row.z = row.out;
  }
  if (row.maxima == scratch.maxima) return;
  std::memcpy(scratch.maxima, row.maxima, static_cast<size_t>(num_maxima(row.n)) * sizeof(float));
  row.maxima = scratch.maxima;
}

// Changes one token's logit of an owned row, and the one maximum, of eight logits, that it takes part in.
static inline void set_logit(Row& row, const SampleScratch& scratch, int32_t token, float z) {
  float& maximum = scratch.maxima[token / kSpan * 16 + token % 16];
  const float before = row.out[token];
  row.out[token] = z;
  if (z >= maximum) {
    maximum = z;
  } else if (before == maximum) {
    maximum = z;
    const int first = token / kSpan * kSpan + token % 16;
    for (int i = first; i < row.n && i < first + kSpan; i += 16) {
      if (row.out[i] > maximum) maximum = row.out[i];
    }
  }
}

// change(logit, i) for each token i of the entry that is a candidate; what comes to -infinity is none any more.
template <class F>
static void edit(Row& row, const Edits& edits, const SampleScratch& scratch, const F& change) {
  if (edits.n == 0) return;
  row.weighed = false;
  if (!row.ids) {
    own(row, scratch);
    for (int64_t i = 0; i < edits.n; i++) {
      const int32_t token = edits.tokens[i];
      set_logit(row, scratch, token, change(row.out[token], i));
    }
    row.max = largest_of(scratch.maxima, num_maxima(row.n));
    return;
  }
  for (int64_t i = 0; i < edits.n; i++) {
    const int place = place_of(row.ids, row.n, edits.tokens[i]);
    if (place < row.n && row.ids[place] == edits.tokens[i]) {
      scratch.logits[place] = change(scratch.logits[place], i);
    }
  }
  keep_list(row, scratch, [&](f32x16 v, int) { return over(v, set(-kInfinity)); });
  row.max = largest_of(row.z, row.n);
}

static void penalize(Row& row, float r, const Edits& edits, const SampleScratch& scratch) {
  edit(row, edits, scratch, [&](float z, int64_t) { return z > 0 ? z / r : z * r; });
}

static void add(Row& row, const Edits& edits, const SampleScratch& scratch) {
  edit(row, edits, scratch, [&](float z, int64_t i) { return z + edits.amounts[i]; });
}

static void ban(Row& row, const Edits& edits, const SampleScratch& scratch) {
  edit(row, edits, scratch, [](float, int64_t) { return -kInfinity; });
}

// Keeps the given tokens, which ascend, alone.
static void allow(Row& row, const Edits& edits, const SampleScratch& scratch) {
  int kept = 0, place = 0;
  for (int64_t i = 0; i < edits.n; i++) {
    const int32_t token = edits.tokens[i];
    float z;
    if (row.ids) {
      while (place < row.n && row.ids[place] < token) place++;
      z = place < row.n && row.ids[place] == token ? row.z[place] : -kInfinity;
    } else {
      z = row.z[token] / row.divisor;
    }
    if (!(z > -kInfinity)) continue;
    scratch.ids[kept] = token;
    scratch.logits[kept++] = z;
  }
  row.z = scratch.logits;
  row.ids = scratch.ids;
  row.n = kept;
  row.max = largest_of(row.z, row.n);
  row.divisor = 1.0f;
  row.weighed = false;
}

}  // namespace unspool::UNSPOOL_ISA
