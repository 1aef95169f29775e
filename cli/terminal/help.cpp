#include "cli/terminal/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <utility>

namespace fsdp::cli {
namespace {

constexpr int kLeastText = 24;  // columns for help beside the names

// The words whose meaning a flag's help takes for granted.
constexpr std::array<std::pair<const char*, const char*>, 8> kWords = {{
    {"unit", "modules whose parameters are gathered and reduced together: one call of fully_shard (--wrap)"},
    {"shard", "the part of a parameter, gradient or optimizer state that one GPU holds"},
    {"replicate", "how often the sharded model exists: each replica is sharded over GPUs / replicas (--replicate)"},
    {"reshard", "free a unit's whole parameters after forward and gather them again for backward"},
    {"prefetch", "gather the next unit while this one computes"},
    {"micro-batch", "the sequences of one forward and backward on one GPU; a step may accumulate several"},
    {"dialect", "the order of work: fsdp2 is fully_shard, fsdp1 FullyShardedDataParallel, ddp replicates"},
    {"implementation", "the stack that computes: what is saved for backward, which kernels and temporaries there are"},
}};

std::string two_columns(const std::string& left, const std::string& right, int column, int width) {
  const auto indent = static_cast<std::size_t>(column);
  std::string line = "  " + left;
  if (right.empty()) return line + "\n";
  if (line.size() + 2 > indent) line += "\n" + std::string(indent, ' ');
  else line.resize(indent, ' ');
  return line + wrapped(right, std::max(kLeastText, width - column), column) + "\n";
}

std::string left_of(const OptionText& o) {
  if (o.positional()) return (o.type.empty() ? o.names : o.type) + (o.many ? " ..." : "");
  std::string names = o.names;
  if (const std::size_t comma = names.find(','); comma != std::string::npos) names.insert(comma + 1, " ");
  if (!o.takes_value) return names;
  const std::string type = o.type.empty() ? "VALUE" : o.type;
  return names + (o.may_stand_alone ? " [" + type + "]" : " " + type) + (o.many ? " ..." : "");
}

std::string usage(const CommandText& c, const std::string& path) {
  std::string text = "Usage: " + path;
  const bool flags =
      std::any_of(c.options.begin(), c.options.end(), [](const OptionText& o) { return !o.positional(); });
  for (const OptionText& o : c.options)
    if (o.positional()) {
      const std::string word = o.type.empty() ? o.names : o.type;
      text += o.required ? " " + word : " [" + word + "]";
    }
  if (!c.below.empty()) text += " COMMAND";
  return text + (flags ? " [flags]" : "") + "\n";
}

// The titles in the order in which they first appear; what has none comes last.
std::vector<std::string> groups_of(const CommandText& c) {
  std::vector<std::string> groups;
  for (const OptionText& o : c.options)
    if (!o.positional() && !o.help.empty() && std::find(groups.begin(), groups.end(), o.group) == groups.end())
      groups.push_back(o.group);
  std::stable_partition(groups.begin(), groups.end(), [](const std::string& group) { return !group.empty(); });
  return groups;
}

int column_of(const CommandText& c, int width) {
  std::size_t longest = 0;
  for (const OptionText& o : c.options)
    if (!o.help.empty()) longest = std::max(longest, left_of(o).size());
  for (const CommandText& below : c.below) longest = std::max(longest, below.name.size());
  const int most = std::clamp(width / 3, 12, 34);
  return std::min(static_cast<int>(longest) + 4, most);
}

}  // namespace

const CommandText& named(const CommandText& root, const std::vector<std::string>& words, std::size_t& used) {
  const CommandText* at = &root;
  for (used = 0; used < words.size(); ++used) {
    const auto next =
        std::find_if(at->below.begin(), at->below.end(), [&](const CommandText& c) { return c.name == words[used]; });
    if (next == at->below.end()) break;
    at = &*next;
  }
  return *at;
}

std::vector<std::string> names_of(const OptionText& o) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= o.names.size();) {
    const std::size_t end = std::min(o.names.find(',', begin), o.names.size());
    names.push_back(o.names.substr(begin, std::min(end, o.names.find('[', begin)) - begin));
    begin = end + 1;
  }
  return names;
}

std::string wrapped(const std::string& text, int width, int indent) {
  std::string out, line;
  const auto flush = [&] {
    if (!out.empty()) out += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
    out += line;
    line.clear();
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > static_cast<std::size_t>(width)) flush();
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  if (!line.empty() || out.empty()) flush();
  return out;
}

std::string words_text(int width) {
  std::string text = "Words:\n";
  for (const auto& [word, meaning] : kWords) text += two_columns(word, meaning, 18, width);
  return text;
}

std::string help_text(const CommandText& c, const std::string& path, int width) {
  const int column = column_of(c, width);
  std::string about = c.about;
  about[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(about[0])));
  std::string text = wrapped(about, width, 0) + "\n\n" + usage(c, path);
  bool any = false;
  for (const OptionText& o : c.options) {
    if (!o.positional() || o.help.empty()) continue;
    text += any ? "" : "\n";
    any = true;
    text += two_columns(left_of(o), o.help, column, width);
  }
  if (!c.below.empty()) text += "\nCommands:\n";
  for (const CommandText& below : c.below) text += two_columns(below.name, below.about, column, width);
  const std::vector<std::string> groups = groups_of(c);
  for (const std::string& group : groups) {
    text += "\n" + (!group.empty() ? group : groups.size() > 1 ? "Other flags" : "Flags") + ":\n";
    for (const OptionText& o : c.options)
      if (!o.positional() && !o.help.empty() && o.group == group)
        text += two_columns(left_of(o), o.help, column, width);
  }
  if (c.explains_words) text += "\n" + words_text(width);
  if (!c.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : c.examples) text += "  " + example + "\n";
  return text;
}

}  // namespace fsdp::cli
