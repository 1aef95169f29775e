// PyTorch's auto-wrap policies over a module tree (torch.distributed.fsdp.wrap): which modules become separate units.
//
//   WrapPolicy blocks{...classes...}, large{...}; choose(model, {blocks, large}, {});      "or": what any of them wants
//
// The recursion enters a module if it entered every module above it and some policy wants to go on below it (size: it
// is large enough and not a forced leaf; classes: always). Bottom-up, an entered module is wrapped if some policy wants
// it (size: the part not yet wrapped is large enough and the module is not an excluded container; classes: it is one of
// them). The root is never wrapped.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/input/error.h"

namespace fsdp {

// One of the two kinds.
struct WrapPolicy {
  std::vector<char> wanted;                // lambda_auto_wrap_policy, ModuleWrapPolicy: by module id
  std::optional<std::int64_t> min_params;  // size_based_auto_wrap_policy: elements, each storage once
  std::set<std::string> leaf = {"MultiheadAttention"},
                        exclude = {"ModuleList", "ModuleDict"};  // its class names: PyTorch's defaults
};

// Chosen modules, by id. Ignored modules (ids; with all below them) are not wrapped and their parameters are not
// counted.
[[nodiscard]] std::vector<char> choose(const ModelGraph&, const std::vector<WrapPolicy>&,
                                       const std::vector<std::int32_t>& ignored);

// By module id: is it one of these, or below one?
[[nodiscard]] std::vector<char> with_descendants(const ModelGraph&, const std::vector<std::int32_t>& modules);

// The repeated blocks, in execution order. Throws InputError for a model without them.
[[nodiscard]] std::vector<std::int32_t> blocks_of(const ModelGraph&, const Origin& where);

// A whole number of at least 1: "8", "1e8", "2.5e6".
[[nodiscard]] std::int64_t parse_count(std::string_view text, const Origin& where, const std::string& example);

// Modules in post-order, children in registration order; the root last.
[[nodiscard]] std::vector<std::int32_t> post_order(const ModelGraph&);

}  // namespace fsdp
