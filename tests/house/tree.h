// The repository as values, for rules that read sources: planting a violation is making a list.
//
//   for (const SourceFile& file : read_repository()) ...
//   CHECK(long_lines({{"models/a.cpp", "..."}}).size() == 1);
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct SourceFile {
  std::string path;  // from the root: "models/input/json.cpp"
  std::string text;
};
using Tree = std::vector<SourceFile>;

// What a rule found wrong, one sentence each.
using Findings = std::vector<std::string>;

inline std::filesystem::path repository() { return std::filesystem::path(FSDP_TESTS_DIR).parent_path(); }

// "models/input" of "models/input/json.cpp"; empty for a file of the root.
inline std::string folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return std::string(path.substr(0, slash == std::string_view::npos ? 0 : slash));
}

// "models" of "models/input/json.cpp"; the name itself for a file of the root.
inline std::string room_of(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }

inline std::string extension_of(const std::string& path) { return std::filesystem::path(path).extension().string(); }

inline bool is_header(const std::string& path) {
  const std::string extension = extension_of(path);
  return extension == ".h" || extension == ".cuh";
}

inline bool is_source(const std::string& path) {
  return is_header(path) || extension_of(path) == ".cpp" || extension_of(path) == ".cu";
}

inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

inline std::string place(const SourceFile& file, std::size_t line_index) {
  return file.path + ":" + std::to_string(line_index + 1);
}

// Names at the root that git ignores (`/build/` in .gitignore), and git's own folder.
inline std::set<std::string> ignored_at_root(const std::string& gitignore) {
  std::set<std::string> names = {".git"};
  for (std::string_view line : lines_of(gitignore)) {
    if (line.size() > 2 && line.front() == '/' && line.back() == '/')
      names.insert(std::string(line.substr(1, line.size() - 2)));
  }
  return names;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Every file of the repository, by path.
inline Tree read_repository() {
  namespace fs = std::filesystem;
  const fs::path root = repository();
  const std::set<std::string> ignored = ignored_at_root(text_of(root / ".gitignore"));
  Tree tree;
  const auto read = [&](const fs::path& path) {
    if (path.extension() != ".pyc") tree.push_back({fs::relative(path, root).generic_string(), text_of(path)});
  };
  for (const auto& top : fs::directory_iterator(root)) {
    if (ignored.contains(top.path().filename().string())) continue;
    if (top.is_regular_file()) read(top.path());
    if (!top.is_directory() || top.is_symlink()) continue;
    for (const auto& entry : fs::recursive_directory_iterator(top.path()))
      if (entry.is_regular_file()) read(entry.path());
  }
  std::sort(tree.begin(), tree.end(), [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return tree;
}

// One line each, for a failing CHECK to show.
inline std::string listed(const Findings& findings) {
  std::string text;
  for (const std::string& finding : findings) text += "\n  " + finding;
  return text;
}

}  // namespace fsdp
