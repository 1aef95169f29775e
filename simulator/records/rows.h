// Rows of a record: times by kind of operation, times by unit, and operations in the order of their streams. What a row
// is about is a value; text() of it stands in JSON and in tables, and parse_...() reads that text back.
//
//   text(ActionKey{Action::forward, OpKind::linear})                 -> "forward linear"
//   text(UnitKey{3, "model.layers.1"})                               -> "unit 3 (model.layers.1)"
//   text(OrderedOperation{Stream::all_gather, Action::all_gather, "unit 4 (model.layers.3) mb 0"})
//                                                                    -> "G: all_gather unit 4 (model.layers.3) mb 0"
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/graph.h"
#include "planner/program.h"

namespace fsdp {

// A kind of operation: its action; of forward, recompute and backward also the op that it computes.
struct ActionKey {
  Action action{};
  std::optional<OpKind> op = {};
  friend auto operator<=>(const ActionKey&, const ActionKey&) = default;
};
[[nodiscard]] std::string text(const ActionKey&);
[[nodiscard]] std::optional<ActionKey> parse_action_key(std::string_view text);

// Sum over the operations of one kind in one steady step.
struct ActionTime {
  ActionKey what;
  std::int64_t count = 0;
  double seconds = 0;
};

// A unit of the plan, by its index; `modules` says which in words ("root", "a and 2 more"). Without an index: the
// operations that belong to no unit (loss, batch, norm).
struct UnitKey {
  std::optional<std::int32_t> unit = {};
  std::string modules = {};
  friend auto operator<=>(const UnitKey&, const UnitKey&) = default;
};
[[nodiscard]] std::string text(const UnitKey&);
[[nodiscard]] std::optional<UnitKey> parse_unit_key(std::string_view text);

// What a unit takes of one steady step on one rank: its kernels and copies, and the collectives that are its own.
struct UnitTime {
  UnitKey what;
  double compute_seconds = 0, communication_seconds = 0;
  friend bool operator==(const UnitTime&, const UnitTime&) = default;
};

// One operation in its stream's order; `object` says what it works on, in describe()'s words.
struct OrderedOperation {
  Stream stream{};
  Action action{};
  std::string object = {};
  friend auto operator<=>(const OrderedOperation&, const OrderedOperation&) = default;
};
// The stream as the literature on FSDP2 abbreviates it: D (compute), C (copy-in), G, R, A.
[[nodiscard]] char letter(Stream);
[[nodiscard]] std::string text(const OrderedOperation&);
[[nodiscard]] std::optional<OrderedOperation> parse_ordered_operation(std::string_view text);

}  // namespace fsdp
