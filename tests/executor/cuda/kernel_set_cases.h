// What a KernelSet does besides ops, compared with the host: conversions, layouts, optimizers, norms, data. Copies and
// generated values are compared byte by byte, arithmetic within the tolerance of cuda_op_cases.h.
#pragma once

#include "executor/run.h"
#include "tests/executor/cuda/cuda_op_cases.h"

namespace fsdp::testing {

inline const DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

inline std::string bytes_of(const Tensor& t) {
  if (t.view().bytes == 0) return {};
  return {reinterpret_cast<const char*>(t.view().data), static_cast<std::size_t>(t.view().bytes)};
}
inline bool same_bytes(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = bytes_of(a[i]) == bytes_of(b[i]);
  return same;
}
inline std::vector<BufferView> views_of(const std::vector<Tensor>& tensors) {
  std::vector<BufferView> views;
  for (const Tensor& t : tensors) views.push_back(t.view());
  return views;
}

// f(subject) on both; the tensors that each returns.
template <class F>
std::pair<std::vector<Tensor>, std::vector<Tensor>> on_both(const Subject& subject, const F& f) {
  const auto on = [&](const Subject& s) {
    std::vector<Tensor> made = f(s);
    s.finish();
    return made;
  };
  return {on(subject), on(host_subject())};
}

// Alone in storage type and wide enough: one rounding on both sides, of the same sum. Bits are equal.
inline void check_conversions(const Subject& subject) {
  for (const DType from : kTypes)
    for (const DType to : kTypes)
      for (const std::size_t n : {1u, 8u, 1003u})
        for (const bool accumulate : {false, true})
          for (const std::int64_t shift : {0, 8}) {
            CAPTURE(name(from));
            CAPTURE(name(to));
            CAPTURE(n);
            const auto [got, expected] = on_both(subject, [&](const Subject& s) {
              const Tensor source(s, from, random_numbers(n, 81, 3.0), shift);
              std::vector<Tensor> target;
              if (accumulate) target.emplace_back(s, to, random_numbers(n, 82), shift);
              else target.push_back(Tensor::poisoned(s, to, n, shift));
              s.kernels.convert(from, source.view(), to, target[0].view(), static_cast<std::int64_t>(n), accumulate);
              s.finish();
              return target;
            });
            CHECK(same_bytes(got, expected));
          }
  for (const DType type : kTypes) {
    const auto [got, expected] = on_both(subject, [&](const Subject& s) {
      std::vector<Tensor> x;
      x.emplace_back(s, type, random_numbers(517, 83));
      s.kernels.scale(type, x[0].view(), 517, 1.0 / 3);
      return x;
    });
    CHECK(same_bytes(got, expected));
  }
}

struct Rows {
  std::int64_t rows, row_elements;
  bool trainable = true;
};
inline UnitLayout layout_by_hand(std::int64_t shards, const std::vector<Rows>& params) {
  UnitLayout layout;
  layout.shards = shards;
  for (const Rows& r : params) {
    ShardedParam p;
    p.param = static_cast<std::int32_t>(layout.params.size());
    p.rows = r.rows, p.row_elements = r.row_elements, p.chunk_rows = (r.rows + shards - 1) / shards;
    p.offset = layout.shard_elements, p.trainable = r.trainable;
    layout.shard_elements += p.padded_shard();
    if (p.trainable) layout.reduce_elements += p.padded_shard();
    layout.numel += p.numel();
    layout.params.push_back(p);
  }
  return layout;
}

// With whole packs and without; rows fewer than ranks; a parameter that is not trained; more parameters than one table
// holds.
inline std::vector<UnitLayout> layouts_by_hand() {
  std::vector<Rows> many(70, Rows{3, 5});
  many[7].trainable = many[66].trainable = false;
  return {layout_by_hand(4, {{8, 16}, {4, 32}, {1, 64}}),
          layout_by_hand(4, {{7, 3}, {2, 5}, {1, 1}, {9, 2, false}, {33, 7}}), layout_by_hand(1, {{5, 3}, {2, 8}}),
          layout_by_hand(2, many)};
}

inline void check_layouts(const Subject& subject) {
  for (const UnitLayout& layout : layouts_by_hand())
    for (const DType from : kTypes) {
      CAPTURE(layout.shards);
      CAPTURE(name(from));
      for (const DType to : {DType::f64, DType::f32, DType::bf16}) {
        const auto [got, expected] = on_both(subject, [&](const Subject& s) {
          std::vector<Tensor> full, input;
          for (const ShardedParam& p : layout.params) {
            if (p.param == 1) full.emplace_back();  // no gradient has come
            else
              full.emplace_back(
                  s, from, random_numbers(static_cast<std::size_t>(p.numel()), static_cast<unsigned>(90 + p.param)));
          }
          input.push_back(Tensor::poisoned(s, to, static_cast<std::size_t>(layout.shards * layout.reduce_elements)));
          s.kernels.scatter_copy_in(layout, from, views_of(full), to, input[0].view());
          s.finish();
          return input;
        });
        CHECK(same_bytes(got, expected));
      }
      for (const std::int64_t group : {std::int64_t{0}, std::int64_t{2}}) {
        if (group > 0 && layout.shards % group != 0) continue;
        const auto [got, expected] = on_both(subject, [&](const Subject& s) {
          const Tensor gathered(s, from,
                                random_numbers(static_cast<std::size_t>(layout.shards * layout.shard_elements), 95));
          std::vector<Tensor> full;
          for (const ShardedParam& p : layout.params) {
            if (p.param == 1) full.emplace_back();
            else full.push_back(Tensor::poisoned(s, from, static_cast<std::size_t>(p.numel())));
          }
          if (group == 0) s.kernels.gather_copy_out(layout, from, gathered.view(), views_of(full));
          else s.kernels.gather_parts_copy_out(layout, group, from, gathered.view(), views_of(full));
          s.finish();
          return full;
        });
        CHECK(same_bytes(got, expected));
      }
    }
  for (const std::int64_t piece : {1, 2, 6, 12, 48, 4112})
    for (const bool to_rows : {false, true}) {
      const auto [got, expected] = on_both(subject, [&](const Subject& s) {
        const Tensor from(s, DType::f16, random_numbers(static_cast<std::size_t>(3 * 5 * piece), 96));
        std::vector<Tensor> to;
        to.push_back(Tensor::poisoned(s, DType::f16, static_cast<std::size_t>(3 * 5 * piece)));
        s.kernels.reorder(from.view(), to[0].view(), 3, 5, 2 * piece, to_rows);
        s.finish();
        return to;
      });
      CHECK(same_bytes(got, expected));
    }
}

// Adam divides by the root of a mean of squares plus eps: for elements of order 1 a few roundings of that order reach
// the value.
inline void check_updates(const Subject& subject) {
  Optimizer settings;
  settings.lr = 0.01, settings.weight_decay = 0.1;
  for (const UnitLayout& layout : layouts_by_hand())
    for (std::int64_t rank = 0; rank < layout.shards; rank += 3)
      for (const GradientPlaces places : {GradientPlaces::as_shard, GradientPlaces::trained, GradientPlaces::dense})
        for (const auto& [type, adam, momentum] : {std::tuple{DType::f64, true, 0.0},
                                                   {DType::f32, true, 0.0},
                                                   {DType::f32, false, 0.0},
                                                   {DType::f64, false, 0.9},
                                                   {DType::f32, false, 0.9},
                                                   {DType::bf16, false, 0.9},
                                                   {DType::bf16, true, 0.0}}) {
          settings.momentum = momentum;
          CAPTURE(layout.shards);
          CAPTURE(rank);
          CAPTURE(name(type));
          const auto local = static_cast<std::size_t>(layout.local_trained_elements(rank));
          const auto [got, expected] = on_both(subject, [&](const Subject& s) {
            std::vector<Tensor> t;
            t.emplace_back(s, type, random_numbers(static_cast<std::size_t>(layout.shard_elements), 101));
            t.emplace_back(s, type, random_numbers(local, 102));
            Numbers squares = random_numbers(local, 103);
            for (double& v : squares) v = v * v + 0.5;
            t.emplace_back(s, type, squares);
            const Tensor gradient(
                s, type, random_numbers(static_cast<std::size_t>(gradient_elements(layout, rank, places)), 104));
            const OptimizerUpdate update{layout,          rank,        settings,    3,           type,
                                         gradient.view(), t[0].view(), t[1].view(), t[2].view(), places};
            if (adam) s.kernels.adamw(update);
            else s.kernels.sgd(update);
            s.finish();
            return t;
          });
          for (std::size_t i = 0; i < 3; ++i) check_same(got[i].numbers(), expected[i].numbers(), tolerance(type, 4));
        }
}

// After clipping, as PyTorch leaves them: all NaN where the norm is NaN; where it is infinite, 0 and, in the one place
// that is infinite, NaN. The norm is the last tensor.
inline void check_broken_clipping(const std::vector<Tensor>& clipped, double last) {
  const double norm = clipped.back().numbers()[0];
  CHECK((std::isnan(last) ? std::isnan(norm) : norm == last));
  std::size_t nans = 0, zeros = 0, all = 0;
  for (std::size_t i = 0; i + 1 < clipped.size(); ++i)
    for (const double x : clipped[i].numbers()) nans += std::isnan(x) ? 1 : 0, zeros += x == 0 ? 1 : 0, ++all;
  CHECK(nans == (std::isnan(last) ? all : 1));
  CHECK(zeros == all - nans);
  CHECK(std::isnan(clipped[clipped.size() - 2].numbers().back()));
}

inline void check_clipping(const Subject& subject) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const double p : {2.0, 3.0, std::numeric_limits<double>::infinity()})
      for (const std::size_t parts : {std::size_t{0}, std::size_t{70}})
        for (const double last : {1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
          CAPTURE(name(type));
          CAPTURE(p);
          CAPTURE(parts);
          CAPTURE(last);
          const auto [got, expected] = on_both(subject, [&](const Subject& s) {
            std::vector<Tensor> t;
            for (std::size_t i = 0; i < parts; ++i) {
              Numbers x = random_numbers(i % 7 == 3 ? 300 : 1 + i, static_cast<unsigned>(110 + i));
              if (i == parts - 1) x.back() = last;
              t.emplace_back(s, type, x, p == 3.0 && i % 5 == 2 ? 8 : 0);  // not all of them in packs
            }
            const std::vector<BufferView> values = views_of(t);
            t.push_back(Tensor::poisoned(s, DType::f64, 1));
            s.kernels.local_norm(type, values, p, t.back().view());
            s.kernels.clip(type, values, p, 0.75, t.back().view());
            s.finish();
            return t;
          });
          const double norm = got.back().numbers()[0], right = expected.back().numbers()[0];
          if (!std::isfinite(last) && parts > 0) {
            for (const auto* side : {&got, &expected}) check_broken_clipping(*side, last);
            continue;
          }
          CHECK(std::abs(norm - right) <=
                1e-12 * right);  // sums in fp64 of at most 10^4 terms of one sign: 10^4 * 2^-53
          for (std::size_t i = 0; i < parts; ++i)
            check_same(got[i].numbers(), expected[i].numbers(), tolerance(type, 1));
        }
}

inline void check_data(const Subject& subject) {
  const Workload work{3, 41, 4};
  TokenReader reader = [](std::int64_t sequence, std::int64_t n, std::int64_t* ids, std::int64_t* targets) {
    for (std::int64_t i = 0; i < n; ++i) ids[i] = (sequence + i) % 97, targets[i] = (sequence + i + 1) % 97;
  };
  for (const TokenReader& read : {TokenReader(), reader}) {
    const auto [got, expected] = on_both(subject, [&](const Subject& s) {
      std::vector<Tensor> t;
      for (int i = 0; i < 2; ++i) t.push_back(Tensor::poisoned(s, DType::i64, 123));
      for (int again = 0; again < 6; ++again)
        s.kernels.batch(read, 77, 1000 + again, work, 97, t[0].view(), t[1].view());
      s.finish();
      return t;
    });
    CHECK(same_bytes(got, expected));
  }
  Parameter matrix, bias, weight;
  matrix.name = "layers.0.weight", matrix.shape = {40, 30};
  bias.name = "layers.0.bias", bias.shape = {40};
  weight.name = "norm.weight", weight.shape = {40};
  for (const DType type : kTypes)
    for (const Parameter* p : {&matrix, &bias, &weight}) {
      const auto [got, expected] = on_both(subject, [&](const Subject& s) {
        std::vector<Tensor> t;
        t.push_back(Tensor::poisoned(s, type, 33));
        s.kernels.initial_values(5, *p, 7, 33, type, t[0].view().data);
        s.finish();
        return t;
      });
      CHECK(same_bytes(got, expected));
    }
  const StateReader state = [](const Parameter& p, StatePart part, const Slab& slab, DType type, std::byte* to) {
    Numbers x(static_cast<std::size_t>(slab.rows * p.shape[1]));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<double>(slab.begin) + static_cast<double>(i) + (part == StatePart::parameter ? 0 : 0.5);
    Block b = encode(type, x);
    std::memcpy(to, b.view().data, static_cast<std::size_t>(b.view().bytes));
  };
  const auto [got, expected] = on_both(subject, [&](const Subject& s) {
    std::vector<Tensor> t;
    t.push_back(Tensor::poisoned(s, DType::f32, 90));
    t.push_back(Tensor::poisoned(s, DType::f32, 90));
    s.kernels.read_state(state, matrix, StatePart::first_state, {0, 4, 3}, DType::f32, t[0].view().data);
    s.kernels.copy(t[1].view().data, t[0].view().data, 4 * 89);
    s.kernels.zero({t[0].view().data, 8});
    s.kernels.copy(t[1].view().data, nullptr, 0);
    s.finish();
    return t;
  });
  CHECK(same_bytes(got, expected));
}

}  // namespace fsdp::testing
