// Softmax attention by rows: for each head and each block of up to 64 queries, the scores against all keys that the
// block can see are one matmul, the softmax is taken row by row, and a second matmul gives the outputs. No
// square of seq_len is held.
//
//   S = (q / sqrt(d)) k^T + bias,  P = exp(S - lse),  o = P v;      kept for backward: lse of each head and position,
//                                                                   and o
//   dP = do v^T,  dS = P (dP - rowsum(do o)),  dq = dS k / sqrt(d),  dk = dS^T q / sqrt(d),  dv = P^T do
//
// Query i sees keys j <= i (causal) and, with a window w, only i - j < w. Alibi adds -slope_h |i - j|. Query heads h
// share the key and value head h / (heads / kv_heads). Everything is computed in the arithmetic type, on packed copies
// of one head.
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/arithmetic/exp.h"
#include "executor/kernels/matmul/matmul.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

constexpr std::int64_t kRows = 64;  // queries of a block

// Slopes of MPT's gen_slopes (the ALiBi paper's, with alibi_bias_max 8): 2^(-8 i / n) for i = 1 .. n, n the power of
// two at or above `heads`; if n > heads, first the even i, then the odd i.
double alibi_slope(std::int64_t heads, std::int64_t head) {
  std::int64_t n = 1;
  while (n < heads) n *= 2;
  const std::int64_t even = n / 2;
  const std::int64_t i = n == heads ? head + 1 : head < even ? 2 * head + 2 : 2 * (head - even) + 1;
  return std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(n));
}

// The columns of q, k or v that belong to one head, in a buffer of tokens x row elements.
template <class T>
struct Head {
  T* data = nullptr;
  std::int64_t row = 0;  // elements from token to token
  [[nodiscard]] Head from(std::int64_t token) const { return {data == nullptr ? nullptr : data + token * row, row}; }
};

// Where q, k, v (or their gradients) lie: three buffers, or one packed [q | k | v].
template <class T>
struct Heads {
  T *q, *k, *v;
  std::int64_t q_row, kv_row, dim;
  Head<T> query(std::int64_t token, std::int64_t head) const {
    return {q == nullptr ? nullptr : q + token * q_row + head * dim, q_row};
  }
  Head<T> key(std::int64_t token, std::int64_t head) const {
    return {k == nullptr ? nullptr : k + token * kv_row + head * dim, kv_row};
  }
  Head<T> value(std::int64_t token, std::int64_t head) const {
    return {v == nullptr ? nullptr : v + token * kv_row + head * dim, kv_row};
  }
};

struct Sizes {
  std::int64_t heads, kv_heads, dim, length, rows, q_width, kv_width;
  explicit Sizes(const Call& call)
      : heads(call.shape.heads),
        kv_heads(call.shape.kv_heads),
        dim(call.shape.head_dim),
        length(call.work.seq_len),
        rows(std::min(kRows, call.work.seq_len)),
        q_width(extent(call.shape.heads, call.shape.head_dim)),
        kv_width(extent(call.shape.kv_heads, call.shape.head_dim)) {
    if (heads <= 0 || kv_heads <= 0 || dim <= 0 || heads % kv_heads != 0)
      call.fail("the query heads are no multiple of the key heads");
    if (!call.shape.causal && call.shape.window > 0) call.fail("a window without a causal mask is not defined");
  }
};

template <class T, class Get>
Heads<T> heads_of(const Call& call, const Sizes& z, const Get& get) {
  if (call.shape.packed) {
    const std::int64_t row = z.q_width + 2 * z.kv_width;
    T* qkv = get(0, extent(call.tokens, row));
    if (qkv == nullptr) return {nullptr, nullptr, nullptr, row, row, z.dim};
    return {qkv, qkv + z.q_width, qkv + z.q_width + z.kv_width, row, row, z.dim};
  }
  return {get(0, extent(call.tokens, z.q_width)),
          get(1, extent(call.tokens, z.kv_width)),
          get(2, extent(call.tokens, z.kv_width)),
          z.q_width,
          z.kv_width,
          z.dim};
}

// rows x dim elements of a head, densely, times `factor`; and back.
template <class T>
void pack(Head<T> from, std::int64_t rows, std::int64_t dim, Math<T> factor, Math<T>* to) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < dim; ++i) to[r * dim + i] = load(from.data[r * from.row + i]) * factor;
}
template <class T>
void unpack(const Math<T>* from, std::int64_t rows, std::int64_t dim, Head<T> to, bool accumulate) {
  if (to.data == nullptr) return;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < dim; ++i) put(to.data[r * to.row + i], from[r * dim + i], accumulate);
}

// A block of queries [begin, begin + rows) and the keys [first, last) that any of them sees.
struct Block {
  std::int64_t begin, rows, first, last;
  Block(const OpShape& shape, const Sizes& z, std::int64_t from)
      : begin(from),
        rows(std::min(z.rows, z.length - from)),
        first(shape.window > 0 ? std::max<std::int64_t>(0, from - shape.window + 1) : 0),
        last(shape.causal ? from + rows : z.length) {}
  [[nodiscard]] std::int64_t keys() const { return last - first; }
};

// What query i of a block sees, as columns of the block's score matrix.
struct Seen {
  std::int64_t first, last;
};
Seen seen(const OpShape& shape, const Block& b, std::int64_t i) {
  const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, i - shape.window + 1) : 0;
  return {first - b.first, (shape.causal ? i + 1 : b.last) - b.first};
}

// Scores of row i become exp(score + bias - lse); columns that i does not see become 0. Without `lse` it is computed;
// returned.
template <class M>
M softmax_row(const OpShape& shape, const Block& b, std::int64_t i, M slope, M* row, const M* lse) {
  const Seen s = seen(shape, b, i);
  if (slope != M(0))
    for (std::int64_t j = s.first; j < s.last; ++j) row[j] -= slope * static_cast<M>(std::abs(i - b.first - j));
  M shift = 0;
  if (lse == nullptr) {
    shift = row[s.first];
#pragma omp simd reduction(max : shift)
    for (std::int64_t j = s.first; j < s.last; ++j) shift = row[j] > shift ? row[j] : shift;
  } else {
    shift = *lse;
  }
  M sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = s.first; j < s.last; ++j) {
    row[j] = exp_of(row[j] - shift);
    sum += row[j];
  }
  std::fill(row, row + s.first, M(0));
  std::fill(row + s.last, row + b.keys(), M(0));
  if (lse != nullptr) return *lse;
  const M inverse = M(1) / sum;
  for (std::int64_t j = s.first; j < s.last; ++j) row[j] *= inverse;
  return shift + std::log(sum);
}

template <class M>
Operand<M> plain(const M* data, std::int64_t stride) {
  return {data, stride, Transpose::no};
}
template <class M>
Operand<M> turned(const M* data, std::int64_t stride) {
  return {data, stride, Transpose::yes};
}

template <class T>
Math<T> query_factor(const Sizes& z) {
  return static_cast<Math<T>>(1.0 / std::sqrt(static_cast<double>(z.dim)));
}

template <class T>
Math<T> slope_of(const Call& call, std::int64_t head) {
  return call.shape.alibi ? static_cast<Math<T>>(alibi_slope(call.shape.heads, head)) : Math<T>(0);
}

// Scratch of forward, in elements of the arithmetic type: k, v [length, dim]; q, o [rows, dim]; scores [rows, length].
std::int64_t forward_scratch(const Sizes& z) {
  return extent(2 * z.length + 2 * z.rows, z.dim) + extent(z.rows, z.length);
}
// Backward: k, v, dk, dv [length, dim]; q, o, do, dq [rows, dim]; P, dS [rows, length]; rowsum(do o) [rows].
std::int64_t backward_scratch(const Sizes& z) {
  return extent(4 * z.length + 4 * z.rows, z.dim) + extent(2 * z.rows, z.length) + z.rows;
}

// Forward of one block of queries of one head. k, v: packed, all keys of the sequence.
template <class T>
void forward_block(const Call& call, const Sizes& z, const Block& b, std::int64_t head, Head<T> q_from, Head<T> to,
                   const Math<T>* k, const Math<T>* v, Math<T>* work, Math<T>* lse) {
  using M = Math<T>;
  M *q = work, *o = q + z.rows * z.dim, *scores = o + z.rows * z.dim;
  const std::int64_t n = b.keys();
  pack(q_from, b.rows, z.dim, query_factor<T>(z), q);
  matmul(b.rows, n, z.dim, M(1), plain(q, z.dim), turned(k + b.first * z.dim, z.dim), M(0), scores, n);
  const M slope = slope_of<T>(call, head);
  for (std::int64_t r = 0; r < b.rows; ++r) {
    const M l = softmax_row<M>(call.shape, b, b.begin + r, slope, scores + r * n, nullptr);
    if (lse != nullptr) lse[b.begin + r] = l;
  }
  matmul(b.rows, z.dim, n, M(1), plain(scores, n), plain(v + b.first * z.dim, z.dim), M(0), o, z.dim);
  unpack(o, b.rows, z.dim, to, false);
}

// Packed copies of one key-value head and their gradients, and the work space of a block.
template <class M>
struct BackwardSpace {
  M *k, *v, *dk, *dv, *q, *o, *dout, *dq, *p, *ds, *sums;
  BackwardSpace(M* at, const Sizes& z) {
    const std::int64_t all = z.length * z.dim, some = z.rows * z.dim, scores = z.rows * z.length;
    k = at, v = k + all, dk = v + all, dv = dk + all;
    q = dv + all, o = q + some, dout = o + some, dq = dout + some;
    p = dq + some, ds = p + scores, sums = ds + scores;
  }
};

// sums[r] = rowsum(do o), then ds = p (ds - sums) row by row; ds holds dP before.
template <class M>
void score_gradient(const BackwardSpace<M>& w, std::int64_t rows, std::int64_t dim, std::int64_t n) {
  for (std::int64_t r = 0; r < rows; ++r) {
    M sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < dim; ++i) sum += w.dout[r * dim + i] * w.o[r * dim + i];
    w.sums[r] = sum;
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < n; ++j) w.ds[r * n + j] = w.p[r * n + j] * (w.ds[r * n + j] - w.sums[r]);
}

// Backward of one block: q, o and do are packed in `w`; adds to w.dk and w.dv, leaves dq.
template <class M>
void backward_block(const OpShape& shape, const Sizes& z, const Block& b, M slope, M factor, const BackwardSpace<M>& w,
                    const M* lse) {
  const std::int64_t n = b.keys(), d = z.dim;
  const M *k = w.k + b.first * d, *v = w.v + b.first * d;
  matmul(b.rows, n, d, M(1), plain(w.q, d), turned(k, d), M(0), w.p, n);
  for (std::int64_t r = 0; r < b.rows; ++r)
    softmax_row<M>(shape, b, b.begin + r, slope, w.p + r * n, lse + b.begin + r);
  matmul(n, d, b.rows, M(1), turned(w.p, n), plain(w.dout, d), M(1), w.dv + b.first * d, d);
  matmul(b.rows, n, d, M(1), plain(w.dout, d), turned(v, d), M(0), w.ds, n);
  score_gradient(w, b.rows, d, n);
  matmul(b.rows, d, n, factor, plain(w.ds, n), plain(k, d), M(0), w.dq, d);
  matmul(n, d, b.rows, M(1), turned(w.ds, n), plain(w.q, d), M(1), w.dk + b.first * d, d);  // q carries the factor
}

// Backward of one head of one sequence, block by block; q, o, dout and dq start at its first token.
template <class T>
void backward_head(const Call& call, const Sizes& z, std::int64_t head, Head<T> q, Head<T> o, Head<T> dout, Head<T> dq,
                   bool accumulate, const BackwardSpace<Math<T>>& w, const Math<T>* lse) {
  for (std::int64_t i = 0; i < z.length; i += z.rows) {
    const Block b(call.shape, z, i);
    pack(q.from(i), b.rows, z.dim, query_factor<T>(z), w.q);
    pack(o.from(i), b.rows, z.dim, Math<T>(1), w.o);
    pack(dout.from(i), b.rows, z.dim, Math<T>(1), w.dout);
    backward_block<Math<T>>(call.shape, z, b, slope_of<T>(call, head), query_factor<T>(z), w, lse);
    unpack(w.dq, b.rows, z.dim, dq.from(i), accumulate);
  }
}

}  // namespace

template <class T>
void attention_forward(const Call& call) {
  using M = Math<T>;
  const Sizes z(call);
  const Heads<T> in = heads_of<T>(call, z, [&](std::size_t i, std::int64_t n) { return call.input<T>(i, n); });
  T* out = call.output<T>(0, extent(call.tokens, z.q_width));
  M* lse = call.extra_to_keep<M>(extent(call.tokens, z.heads));
  M* k = call.scratch<M>(forward_scratch(z));
  M *v = k + z.length * z.dim, *work = v + z.length * z.dim;
  const std::int64_t shared = z.heads / z.kv_heads;
  for (std::int64_t s = 0; s < call.work.sequences; ++s)
    for (std::int64_t g = 0; g < z.kv_heads; ++g) {
      const std::int64_t token = s * z.length;
      pack(in.key(token, g), z.length, z.dim, M(1), k);
      pack(in.value(token, g), z.length, z.dim, M(1), v);
      for (std::int64_t h = g * shared; h < (g + 1) * shared; ++h)
        for (std::int64_t i = 0; i < z.length; i += z.rows)
          forward_block<T>(call, z, Block(call.shape, z, i), h, in.query(token + i, h),
                           Head<T>{out + (token + i) * z.q_width + h * z.dim, z.q_width}, k, v, work,
                           lse == nullptr ? nullptr : lse + (s * z.heads + h) * z.length);
    }
}

template <class T>
void attention_backward(const Call& call) {
  using M = Math<T>;
  const Sizes z(call);
  const std::int64_t n = extent(call.tokens, z.q_width);
  T* dout = call.grad_output<T>(0, n);
  const Heads<T> in = heads_of<T>(call, z, [&](std::size_t i, std::int64_t e) { return call.input<T>(i, e); });
  const Heads<T> grad = heads_of<T>(call, z, [&](std::size_t i, std::int64_t e) { return call.grad_input<T>(i, e); });
  T* out = call.output<T>(0, n);
  const M* lse = call.extra<M>(extent(call.tokens, z.heads));
  const BackwardSpace<M> w(call.scratch<M>(backward_scratch(z)), z);
  const std::int64_t shared = z.heads / z.kv_heads;
  const auto adds = [&](std::size_t i) { return call.adds_to_input(call.shape.packed ? 0 : i); };
  for (std::int64_t s = 0; s < call.work.sequences; ++s)
    for (std::int64_t g = 0; g < z.kv_heads; ++g) {
      const std::int64_t token = s * z.length;
      pack(in.key(token, g), z.length, z.dim, M(1), w.k);
      pack(in.value(token, g), z.length, z.dim, M(1), w.v);
      std::fill_n(w.dk, 2 * z.length * z.dim, M(0));  // dk and dv lie side by side
      for (std::int64_t h = g * shared; h < (g + 1) * shared; ++h) {
        const Head<T> o{out + token * z.q_width + h * z.dim, z.q_width},
            d{dout + token * z.q_width + h * z.dim, z.q_width};
        backward_head<T>(call, z, h, in.query(token, h), o, d, grad.query(token, h), adds(0), w,
                         lse + (s * z.heads + h) * z.length);
      }
      unpack(w.dk, z.length, z.dim, grad.key(token, g), adds(1));
      unpack(w.dv, z.length, z.dim, grad.value(token, g), adds(2));
    }
}

template void attention_forward<double>(const Call&);
template void attention_forward<float>(const Call&);
template void attention_forward<BFloat16>(const Call&);
template void attention_forward<Float16>(const Call&);
template void attention_backward<double>(const Call&);
template void attention_backward<float>(const Call&);
template void attention_backward<BFloat16>(const Call&);
template void attention_backward<Float16>(const Call&);

}  // namespace fsdp
