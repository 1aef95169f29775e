#include "viz/text.h"

namespace fsdp {

std::string markup_text(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else if (c < 0x20 || c == 0x7f) out += '?';
    else if (c < 0x80) out += static_cast<char>(c);
    else {
      const std::size_t more = (c & 0xE0) == 0xC0 ? 1 : (c & 0xF0) == 0xE0 ? 2 : (c & 0xF8) == 0xF0 ? 3 : 0;
      bool whole = more > 0 && i + more < text.size() && c != 0xC0 && c != 0xC1 && c < 0xF5;
      for (std::size_t k = 1; whole && k <= more; ++k) whole = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
      const auto second = whole ? static_cast<unsigned char>(text[i + 1]) : 0U;
      const bool surrogate = c == 0xED && second >= 0xA0,
                 overlong = (c == 0xE0 && second < 0xA0) || (c == 0xF0 && second < 0x90);
      const bool outside = (c == 0xF4 && second >= 0x90) ||
                           (c == 0xEF && second == 0xBF && whole && static_cast<unsigned char>(text[i + 2]) >= 0xBE);
      if (!whole || surrogate || overlong || outside) {
        out += '?';
        continue;
      }
      out += text.substr(i, more + 1);
      i += more;
    }
  }
  return out;
}

std::vector<std::string> text_lines(std::string_view text, std::size_t most) {
  std::vector<std::string> lines;
  while (true) {
    std::size_t end = 0, blank = std::string_view::npos, characters = 0;
    for (; end < text.size(); ++end) {
      if ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) continue;  // goes on with a character
      if (text[end] == ' ') blank = end;
      if (characters++ == most) break;
    }
    const bool all = end == text.size(), at_blank = !all && blank != std::string_view::npos && blank > 0;
    lines.emplace_back(text.substr(0, at_blank ? blank : end));
    if (all) return lines;
    text.remove_prefix(at_blank ? blank + 1 : end);
  }
}

}  // namespace fsdp
