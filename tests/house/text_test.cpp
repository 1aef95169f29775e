// Rules about the text of sources: width, tabs, names of flags, texts of errors, paths in comments.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/house/cpp_text.h"
#include "tests/house/inner_order.h"
#include "tests/house/tree.h"

using namespace fsdp;

namespace {

constexpr std::size_t kWidth = 120;

bool is_shell(const std::string& path) { return path.ends_with(".sh") || path == "dev" || path == ".ci/run"; }

bool is_code(const std::string& path) {
  static const std::set<std::string> kExtensions = {".cmake", ".py", ".css", ".js"};
  return is_source(path) || is_shell(path) || kExtensions.contains(extension_of(path)) ||
         path.ends_with("CMakeLists.txt");
}

// UTF-8 characters, not bytes.
std::size_t width_of(std::string_view line) {
  std::size_t width = 0;
  for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return width;
}

// Indices of the lines that a raw string touches: their breaks are part of the data.
std::set<std::size_t> raw_lines(const SourceFile& file) {
  std::set<std::size_t> lines;
  if (!is_source(file.path)) return lines;
  for (const Literal& literal : split(file.text).literals) {
    const auto breaks = static_cast<std::size_t>(std::count(literal.text.begin(), literal.text.end(), '\n'));
    if (literal.raw)
      for (std::size_t i = 0; i <= breaks; ++i) lines.insert(literal.line + i);
  }
  return lines;
}

Findings wide_lines(const Tree& tree) {
  Findings found;
  for (const SourceFile& file : tree) {
    if (!is_code(file.path)) continue;
    const std::set<std::size_t> raw = raw_lines(file);
    const auto lines = lines_of(file.text);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const bool excepted = raw.contains(i) || lines[i].find("://") != std::string_view::npos;
      if (width_of(lines[i]) > kWidth && !excepted)
        found.push_back(place(file, i) + ": " + std::to_string(width_of(lines[i])) + " characters");
      if (lines[i].find('\t') != std::string_view::npos) found.push_back(place(file, i) + ": a tab");
    }
  }
  return found;
}

// Flags belong to cli: the other rooms name fields.
Findings flag_names(const Tree& tree) {
  Findings found;
  for (const SourceFile& file : tree) {
    if (!is_source(file.path) || !rooms_below_cli().contains(room_of(file.path))) continue;
    for (const Literal& literal : split(file.text).literals)
      if (literal.text.starts_with("--")) found.push_back(place(file, literal.line) + ": \"" + literal.text + "\"");
  }
  return found;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether `name` stands in `code` as a word that is asked for one of the functions which take a text apart.
bool is_taken_apart(std::string_view code, std::string_view name) {
  static constexpr std::array<std::string_view, 8> kCuts = {"find",      "rfind",   "substr", "starts_with",
                                                            "ends_with", "compare", "erase",  "find_first_of"};
  for (std::size_t at = code.find(name); at != std::string_view::npos; at = code.find(name, at + 1)) {
    if (at > 0 && is_word(code[at - 1]) && is_word(name.front())) continue;
    const std::string_view rest = code.substr(at + name.size());
    for (const std::string_view cut : kCuts)
      if (rest.starts_with("." + std::string(cut) + "(")) return true;
    // Handed to a function of the library that looks into it: `strstr(e.what(), ...)`, `strstr(text.c_str(), ...)`.
    for (const std::string_view call : {"strstr(", "strncmp(", "regex_search(", "regex_match("}) {
      const std::size_t begin = code.rfind(call, at);
      if (begin != std::string_view::npos && code.substr(begin, at - begin).find(' ') == std::string_view::npos)
        return true;
    }
  }
  return false;
}

// The variable that a line initialises with an error's text: `const std::string text = e.what();`, `text(e.what())`.
std::string holder_of(std::string_view code) {
  const std::size_t what = code.find(".what()");
  if (what == std::string_view::npos || code.find("fmt::format") != std::string_view::npos) return {};
  std::size_t end = code.rfind('=', what);
  if (end == std::string_view::npos) end = code.find('(');
  if (end == std::string_view::npos || end > what) return {};
  while (end > 0 && !is_word(code[end - 1])) --end;
  std::size_t begin = end;
  while (begin > 0 && is_word(code[begin - 1])) --begin;
  return std::string(code.substr(begin, end - begin));
}

// A heuristic, on lines: what() is cut on its own line, or a variable that holds it is cut within the next lines.
Findings parsed_errors(const Tree& tree) {
  constexpr std::size_t kReach = 20;
  Findings found;
  for (const SourceFile& file : tree) {
    if (!is_source(file.path) || room_of(file.path) == "tests") continue;
    const std::string code = split(file.text).code;
    const auto lines = lines_of(code);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].find(".what()") == std::string_view::npos) continue;
      if (is_taken_apart(lines[i], "what()") || is_taken_apart(lines[i], "what())"))
        found.push_back(place(file, i) + ": an error's text is taken apart");
      const std::string holder = holder_of(lines[i]);
      for (std::size_t j = i + 1; !holder.empty() && j < std::min(lines.size(), i + kReach); ++j) {
        if (!is_taken_apart(lines[j], holder)) continue;
        found.push_back(place(file, j) + ": an error's text is taken apart ('" + holder + "' of line " +
                        std::to_string(i + 1) + ")");
        break;
      }
    }
  }
  return found;
}

// Paths in comments ("models/input/json.h", "planner/costs/", "executor/cuda/*.cpp") that no file's path begins with.
Findings stale_paths(const Tree& tree) {
  const auto is_place = [](const std::string& room) { return rooms().contains(room) || room == "docs"; };
  const auto exists = [&](std::string_view path) {
    return std::any_of(tree.begin(), tree.end(), [&](const SourceFile& f) { return f.path.starts_with(path); });
  };
  const auto in_path = [](char c) { return is_word(c) || c == '/' || c == '.' || c == '-'; };
  Findings found;
  for (const SourceFile& file : tree) {
    if (!is_source(file.path) || folder_of(file.path) == "tests/house") continue;  // whose examples are made up
    const std::string comments = split(file.text).comments;
    const auto lines = lines_of(comments);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (std::size_t begin = 0; begin < lines[i].size();) {
        std::size_t end = begin;
        while (end < lines[i].size() && in_path(lines[i][end])) ++end;
        std::string_view path = lines[i].substr(begin, end - begin);
        while (!path.empty() && (path.back() == '.' || path.back() == '/')) path.remove_suffix(1);
        if (path.find('/') != std::string_view::npos && is_place(room_of(path)) && !exists(path))
          found.push_back(place(file, i) + ": there is no " + std::string(path));
        begin = end + 1;
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("no line is wider than 120 characters, and no source has a tab") {
  CHECK(listed(wide_lines(read_repository())) == "");
}

TEST_CASE("a planted wide line is found, but for raw strings and addresses") {
  const auto found = [](const std::string& path, const std::string& text) { return wide_lines({{path, text}}).size(); };
  const std::string full(kWidth, 'x'), umlauts = [] {
    std::string text;
    for (std::size_t i = 0; i < kWidth; ++i) text += "\xc3\xbc";
    return text;
  }();
  CHECK(found("models/a.cpp", full + "\n") == 0);
  CHECK(found("models/a.cpp", umlauts + "\n") == 0);
  CHECK(found("models/a.cpp", umlauts + "x\n") == 1);
  for (const char* path : {"models/a.h", "executor/a.cu", "CMakeLists.txt", "executor/a.cmake", "dev", "tests/a.sh",
                           "tests/torch/a.py", ".ci/run"}) {
    CAPTURE(path);
    CHECK(found(path, full + "x") == 1);
    CHECK(found(path, "a\n\tb\n") == 1);
    CHECK(found(path, "# https://" + full + "\n") == 0);
  }
  CHECK(found("tests/golden/a.json", full + "x") == 0);
  CHECK(found("models/a.cpp", "f(R\"(" + full + "\n" + full + "x)\");\nint b;\n") == 0);
  CHECK(found("models/a.cpp", "f(R\"(a\nb)\");\n" + full + "x\n") == 1);
  CHECK(found("models/a.cpp", "// R\"( " + full + "\n") == 1);
}

TEST_CASE("no room but cli names a flag") { CHECK(listed(flag_names(read_repository())) == ""); }

TEST_CASE("a planted name of a flag is found, but for comments and the emitted script") {
  const auto found = [](const std::string& path, const std::string& text) { return flag_names({{path, text}}).size(); };
  CHECK(found("models/a.cpp", "throw InputError(\"--gpus\", \"none\");\n") == 1);
  CHECK(found("executor/a.cuh", "f(\n  \"--backend cuda\");\n") == 1);
  CHECK(found("cli/a.cpp", "f(\"--gpus\");\n") == 0);
  CHECK(found("models/a.h", "//   parse(\"80\", \"--memory-limit\")\n/* \"--b\" */\n") == 0);
  CHECK(found("planner/a.cpp", "f(R\"(parser.add_argument(\"--steps\", type=int))\");\n") == 0);
  CHECK(found("planner/a.cpp", "f('\"', \"--gpus\", 1'000);\n") == 1);
}

TEST_CASE("no error's text is taken apart") { CHECK(listed(parsed_errors(read_repository())) == ""); }

TEST_CASE("a planted search in an error's text is found") {
  const auto found = [](const std::string& text) { return parsed_errors({{"cli/a.cpp", text}}).size(); };
  CHECK(found("if (std::string(e.what()).find(\"x\") == 0) return;\n") == 1);
  CHECK(found("if (std::string_view(e.what()).starts_with(\"plan: \")) throw;\n") == 1);
  CHECK(found("if (std::strstr(e.what(), \"x\") != nullptr) throw;\n") == 1);
  CHECK(found("const std::string text = e.what();\nf();\nreturn text.substr(3);\n") == 1);
  CHECK(found("std::string text(e.what());\nif (text.rfind(\"plan: \", 0) == 0) throw;\n") == 1);
  CHECK(found("const std::string text = e.what();\nsay(text);\nreturn context.substr(3);\n") == 0);
  CHECK(found("say(fmt::format(\"{}: {}\", name.substr(1), e.what()));\n") == 0);
  CHECK(found("say(e.what());  // what().find(\"x\")\n") == 0);
}

TEST_CASE("every path that a comment names exists") { CHECK(listed(stale_paths(read_repository())) == ""); }

TEST_CASE("a planted path in a comment that does not exist is found") {
  const auto found = [](const std::string& line) {
    return stale_paths({{"models/input/json.h", ""}, {"cli/a.cpp", line + "\n"}}).size();
  };
  CHECK(found("// as models/input/xml.h does.") == 1);
  CHECK(found("/* see\n planner/costs/ */ int x;") == 1);
  CHECK(found("// models/input/json.h, models/input/, models/input/*.h: models/inp") == 0);
  CHECK(found("f(\"planner/costs\");  // and/or, read/write, https://docs/x") == 0);
}

TEST_CASE("C++ is split into code, comments and literals") {
  const CppText text =
      split("a(\"b\\\"c\", 1'000, 'd', u8'\"');  // \"e\"\n/* \"f\"\n */ g(R\"x(h)\"\ni)x\", \"j\");\n");
  REQUIRE(text.literals.size() == 3);
  CHECK(text.literals[0].text == "b\\\"c");
  CHECK(text.literals[1].text == "h)\"\ni");
  CHECK(text.literals[1].raw);
  CHECK(text.literals[1].line == 2);
  CHECK(text.literals[2].text == "j");
  CHECK(text.literals[2].line == 3);
  CHECK(text.code.find('f') == std::string::npos);
  CHECK(text.comments.find("\"e\"\n/* \"f\"\n */") != std::string::npos);
  CHECK(text.comments.find('g') == std::string::npos);
  CHECK(text.code.find("g(R\"") != std::string::npos);
  CHECK(lines_of(text.code).size() == 4);
}
