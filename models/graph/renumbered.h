// Puts parameters behind others of their module, and keeps the numbers of the old ones in ops.
//
//   Renumbered parameters(model);                     // the model has none now
//   for (std::size_t i = 0; i < n; ++i) {
//     parameters.keep(i);                             // the old one, then what comes behind it
//     if (...) added = parameters.add({"w3", ...});
//   }
//   parameters.renumber_ops();                        // of the old ones; then set those of the new ones
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/graph.h"

namespace fsdp {

class Renumbered {
 public:
  explicit Renumbered(ModelGraph& model) : model_(model), before_(std::exchange(model.parameters, {})) {}

  [[nodiscard]] const std::vector<Parameter>& before() const { return before_; }
  void keep(std::size_t old) {
    moved_.push_back(static_cast<std::int32_t>(model_.parameters.size()));
    model_.parameters.push_back(before_[old]);
  }
  std::int32_t add(Parameter p) {
    model_.parameters.push_back(std::move(p));
    return static_cast<std::int32_t>(model_.parameters.size()) - 1;
  }
  void renumber_ops() {
    for (Op& op : model_.ops)
      for (std::int32_t& p : op.params) p = moved_[static_cast<std::size_t>(p)];
  }

 private:
  ModelGraph& model_;
  std::vector<Parameter> before_;
  std::vector<std::int32_t> moved_;
};

}  // namespace fsdp
