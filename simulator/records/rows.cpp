#include "simulator/records/rows.h"

#include <array>
#include <charconv>

#include "models/input/names.h"

namespace fsdp {

namespace {

constexpr std::array<char, kStreams> kStreamLetters = {'D', 'C', 'G', 'R', 'A', 'T'};

struct Words {
  std::string_view first, rest;
};
Words split_first(std::string_view text) {
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos) return {text, {}};
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

std::string text(const ActionKey& key) {
  std::string words(name(key.action));
  if (key.op) words.append(" ").append(name(*key.op));
  return words;
}

std::optional<ActionKey> parse_action_key(std::string_view text) {
  const auto [first, rest] = split_first(text);
  const auto action = find_name<Action>(name, kActions, first);
  const auto op = find_name<OpKind>(name, kOpKinds, rest);
  if (!action || (first.size() < text.size() && !op)) return std::nullopt;
  return ActionKey{*action, op};
}

std::string text(const UnitKey& key) {
  return key.unit ? "unit " + std::to_string(*key.unit) + " (" + key.modules + ")" : "no unit";
}

std::optional<UnitKey> parse_unit_key(std::string_view text) {
  constexpr std::string_view kUnit = "unit ";
  if (text == "no unit") return UnitKey{};
  if (!text.starts_with(kUnit) || !text.ends_with(')')) return std::nullopt;
  const auto [index, modules] = split_first(text.substr(kUnit.size()));
  std::int32_t unit = 0;
  const auto [end, error] = std::from_chars(index.data(), index.data() + index.size(), unit);
  if (error != std::errc() || end != index.data() + index.size() || unit < 0 || !modules.starts_with('('))
    return std::nullopt;
  return UnitKey{unit, std::string(modules.substr(1, modules.size() - 2))};
}

char letter(Stream stream) { return kStreamLetters[static_cast<std::size_t>(stream)]; }

std::string text(const OrderedOperation& operation) {
  std::string words = {letter(operation.stream), ':', ' '};
  words += name(operation.action);
  if (!operation.object.empty()) words.append(" ").append(operation.object);
  return words;
}

std::optional<OrderedOperation> parse_ordered_operation(std::string_view text) {
  if (text.size() < 3 || text.substr(1, 2) != ": ") return std::nullopt;
  const auto [first, rest] = split_first(text.substr(3));
  const auto action = find_name<Action>(name, kActions, first);
  if (!action) return std::nullopt;
  for (int s = 0; s < kStreams; ++s)
    if (letter(static_cast<Stream>(s)) == text.front())
      return OrderedOperation{static_cast<Stream>(s), *action, std::string(rest)};
  return std::nullopt;
}

}  // namespace fsdp
