// Just enough of C++'s grammar for rules about text: which characters are code, comments and string literals.
//
//   split("f(\"--x\");  // y").literals[0].text == "--x"
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct Literal {
  std::size_t line;  // index of its first line
  bool raw;
  std::string text;  // between the quotes, escapes as they were written
};

struct CppText {
  std::string code;      // the text with comments and the insides of literals blanked; line breaks stay
  std::string comments;  // and its reverse: comments alone
  std::vector<Literal> literals;
};

// A quote after a letter or a digit separates digits (1'000) unless the word is a literal's prefix.
inline bool starts_character(std::string_view text, std::size_t quote) {
  std::size_t begin = quote;
  while (begin > 0 && (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0 || text[begin - 1] == '_'))
    --begin;
  const std::string_view word = text.substr(begin, quote - begin);
  return word.empty() || word == "u" || word == "U" || word == "L" || word == "u8";
}

inline CppText split(std::string_view text) {
  CppText result{std::string(text), std::string(text.size(), ' '), {}};
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i)
      if (result.code[i] != '\n') result.code[i] = ' ';
  };
  const auto comment = [&](std::size_t from, std::size_t to) {
    blank(from, to);
    std::copy(text.begin() + static_cast<std::ptrdiff_t>(from), text.begin() + static_cast<std::ptrdiff_t>(to),
              result.comments.begin() + static_cast<std::ptrdiff_t>(from));
  };
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') result.comments[i] = '\n';
  std::size_t line = 0;
  const auto count_lines = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) line += text[i] == '\n' ? 1 : 0;
  };
  const auto end_of = [&](std::string_view what, std::size_t from) {
    const std::size_t found = text.find(what, from);
    return found == std::string_view::npos ? text.size() : found;
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text.substr(i, 2) == "//") {
      end = end_of("\n", i);
      comment(i, end);
    } else if (text.substr(i, 2) == "/*") {
      end = std::min(end_of("*/", i + 2) + 2, text.size());
      comment(i, end);
    } else if (text[i] == '"' && i > 0 && text[i - 1] == 'R') {
      const std::size_t open = end_of("(", i);
      const std::string close = ")" + std::string(text.substr(i + 1, open - i - 1)) + "\"";
      const std::size_t close_at = end_of(close, open);
      end = std::min(close_at + close.size(), text.size());
      result.literals.push_back({line, true, std::string(text.substr(open + 1, close_at - open - 1))});
      blank(i + 1, end - 1);
    } else if (text[i] == '"' || (text[i] == '\'' && starts_character(text, i))) {
      while (end < text.size() && text[end] != text[i] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end, text.size());
      if (text[i] == '"') result.literals.push_back({line, false, std::string(text.substr(i + 1, end - i - 1))});
      blank(i + 1, end);
      end = std::min(end + 1, text.size());
    }
    count_lines(i, end);
    i = end;
  }
  return result;
}

}  // namespace fsdp
