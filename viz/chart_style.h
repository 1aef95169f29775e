// What a terminal can show beside plain text. Files get neither: no colours, and charts of block characters in UTF-8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

struct ChartStyle {
  bool colours = false;
  bool ascii = false;  // no block characters
};

enum class Ink : std::uint8_t { plain, blue, cyan, yellow, red, magenta, grey, green };

// The text in a colour, where the style has colours. Escapes take no columns.
[[nodiscard]] inline std::string inked(std::string_view text, Ink ink, const ChartStyle& style) {
  constexpr std::array<std::string_view, 8> kCodes = {"", "34", "36", "33", "31", "35", "90", "32"};
  if (!style.colours || ink == Ink::plain || text.empty()) return std::string(text);
  return "\033[" + std::string(kCodes[static_cast<std::size_t>(ink)]) + "m" + std::string(text) + "\033[0m";
}

// A cell of a bar that is filled from below by 0 to 8 eighths.
[[nodiscard]] inline std::string_view filled_cell(std::size_t eighths, const ChartStyle& style) {
  constexpr std::array<std::string_view, 9> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<std::string_view, 9> kPlain = {" ", ".", ".", ".", ":", ":", ":", "#", "#"};
  return (style.ascii ? kPlain : kBlocks)[eighths];
}

}  // namespace fsdp
