#include "planner/lint/flat.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fsdp {
namespace {

constexpr std::string_view kBlank = " \t\r";
constexpr std::size_t kMostKeys = 10'000;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Without what follows a '#' that is not inside quotes.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quote != 0) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line[i] == '#' && (i == 0 || kBlank.find(line[i - 1]) != std::string_view::npos)) {
      return line.substr(0, i);
    }
  }
  return line;
}

std::string unquoted(std::string_view text) {
  text = trimmed(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  return std::string(text);
}

struct Line {
  std::string_view text;
  int number;
};
std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_comment(text.substr(0, end));
    if (!trimmed(line).empty()) lines.push_back({line, number});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

[[noreturn]] void refuse_line(std::string_view where, int line, const std::string& problem) {
  throw InputError({std::string(where), "line " + std::to_string(line)}, problem,
                   "give the configuration as its framework writes it");
}

// "[a, 'b']" -> "a,b"; other values as they are.
std::string value_of(std::string_view text, std::string_view where, int line) {
  text = trimmed(text);
  if (!text.empty() && std::string_view("&*|>!").find(text.front()) != std::string_view::npos)
    refuse_line(where, line, "anchors, tags and texts of several lines are not read");
  if (text == "{}") return {};
  if (!text.starts_with('[')) return unquoted(text);
  if (!text.ends_with(']')) refuse_line(where, line, "the list does not end on its line");
  text = text.substr(1, text.size() - 2);
  std::string joined;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string item = unquoted(text.substr(0, end));
    if (!item.empty()) joined += (joined.empty() ? "" : ",") + item;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return joined;
}

std::string with_line(const FlatValue& v) { return v.key + " (line " + std::to_string(v.line) + ")"; }

// Of changeable values a changeable one; none: null.
template <class Values>
auto value_of_key(Values& values, std::string_view key) -> decltype(values.data()) {
  const auto it = std::find_if(values.begin(), values.end(), [&](const FlatValue& v) { return v.key == key; });
  return it == values.end() ? nullptr : &*it;
}

// Arguments of torchtitan's that several words may follow.
bool is_list(std::string_view key) {
  return key.ends_with(".converters") || key.ends_with(".components") || key.ends_with("fqns");
}

}  // namespace

const FlatValue* FlatConfig::find(std::string_view key) const { return value_of_key(values_, key); }
FlatValue* FlatConfig::find(std::string_view key) { return value_of_key(values_, key); }
bool FlatConfig::has(std::string_view key) const { return find(key) != nullptr; }

std::string FlatConfig::place(std::string_view key) const {
  const FlatValue* value = find(key);
  return value == nullptr ? std::string(key) : with_line(*value);
}

void FlatConfig::add(std::string key, std::string value, int line) {
  if (find(key) != nullptr) refuse_line(where_, line, "'" + key + "' stands there twice");
  if (values_.size() == kMostKeys) refuse_line(where_, line, "is beyond the 10000 keys that are read");
  values_.push_back({std::move(key), std::move(value), line, false});
}

std::optional<std::string> FlatConfig::text(std::string_view key) {
  FlatValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  value->asked = true;
  if (value->value.empty() || value->value == "null" || value->value == "~" || value->value == "None")
    return std::nullopt;
  return value->value;
}

std::optional<bool> FlatConfig::boolean(std::string_view key) {
  const auto said = text(key);
  if (!said) return std::nullopt;
  if (*said == "true" || *said == "True") return true;
  if (*said == "false" || *said == "False") return false;
  refuse(key, "'" + *said + "' is neither true nor false");
}

std::optional<std::int64_t> FlatConfig::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const auto said = text(key);
  if (!said) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(said->data(), said->data() + said->size(), value);
  if (error != std::errc() || end != said->data() + said->size()) refuse(key, "'" + *said + "' is not a whole number");
  if (value < min || value > max)
    refuse(key, *said + " is out of range (" + std::to_string(min) + " to " + std::to_string(max) + ")");
  return value;
}

void FlatConfig::ignore(std::string_view key) {
  if (FlatValue* value = find(key)) value->asked = true;
}
void FlatConfig::leave(std::string_view key) {
  if (FlatValue* value = find(key)) value->asked = false;
}
void FlatConfig::ignore_section(std::string_view name) {
  for (FlatValue& v : values_)
    if (v.key.starts_with(name)) v.asked = true;
}

std::vector<std::string> FlatConfig::unread() const {
  std::vector<std::string> keys;
  for (const FlatValue& v : values_)
    if (!v.asked) keys.push_back(with_line(v));
  return keys;
}

void FlatConfig::refuse(std::string_view key, const std::string& problem, const std::string& remedy) const {
  throw InputError({where_, std::string(key)}, problem, remedy);
}

FlatConfig flat_yaml(std::string_view text, std::string_view where) {
  FlatConfig config{std::string(where)};
  struct Section {
    std::size_t indent;
    std::string key;
  };
  std::vector<Section> sections;           // that the line is inside of, outermost first
  std::size_t value_indent = 0, item = 0;  // of the last value; below an item of a list nothing is read
  bool after_value = true, in_item = false;
  std::string list_key, list;
  int list_line = 0;
  const auto end_list = [&] {
    if (!list_key.empty() && !list.empty()) config.add(list_key, list, list_line);
    list_key.clear();
    list.clear();
  };
  for (const Line& line : lines_of(text)) {
    const std::size_t indent = line.text.find_first_not_of(' ');
    const std::string_view words = trimmed(line.text);
    if (words.find_first_not_of('-') == std::string_view::npos) continue;  // the mark of a document
    if (line.text[indent] == '\t') refuse_line(where, line.number, "is set in by a tab");
    if (in_item && indent > item) continue;
    in_item = false;
    if (words.starts_with("- ") && !list_key.empty()) {
      list += (list.empty() ? "" : ",") + value_of(words.substr(2), where, line.number);
      in_item = true;
      item = indent;
      continue;
    }
    end_list();
    const std::size_t colon = words.find(':');
    if (colon == std::string_view::npos || (colon + 1 < words.size() && words[colon + 1] != ' '))
      refuse_line(where, line.number, "is not \"key: value\"");
    while (!sections.empty() && sections.back().indent >= indent) sections.pop_back();
    if ((after_value && indent > value_indent) || (indent > 0 && sections.empty()))
      refuse_line(where, line.number, "is set in below a value");
    std::string key;
    for (const Section& s : sections) key += s.key + ".";
    const std::string own = unquoted(words.substr(0, colon));
    key += own;
    const std::string_view value = trimmed(words.substr(colon + 1));
    after_value = !value.empty();
    value_indent = indent;
    if (!value.empty()) {
      config.add(key, value_of(value, where, line.number), line.number);
    } else {  // a section, or a list, or nothing
      sections.push_back({indent, own});
      list_key = key;
      list_line = line.number;
    }
  }
  end_list();
  return config;
}

FlatConfig flat_toml(std::string_view text, std::string_view where) {
  FlatConfig config{std::string(where)};
  std::string section;
  for (const Line& line : lines_of(text)) {
    const std::string_view words = trimmed(line.text);
    if (words.starts_with('[')) {
      if (words.starts_with("[[") || !words.ends_with(']')) refuse_line(where, line.number, "is not \"[section]\"");
      section = std::string(trimmed(words.substr(1, words.size() - 2))) + ".";
      continue;
    }
    const std::size_t equals = words.find('=');
    if (equals == std::string_view::npos) refuse_line(where, line.number, "is not \"key = value\"");
    config.add(section + unquoted(words.substr(0, equals)), value_of(words.substr(equals + 1), where, line.number),
               line.number);
  }
  return config;
}

FlatConfig flat_arguments(std::string_view text, std::string_view where) {
  FlatConfig config{std::string(where)};
  std::string key, list;
  int key_line = 0;
  const auto end = [&](std::string value) {
    if (key.empty()) return;
    config.add(key, list.empty() ? std::move(value) : std::exchange(list, {}), key_line);
    key.clear();
  };
  for (const Line& line : lines_of(text)) {
    std::string_view rest = trimmed(line.text);
    while (!rest.empty()) {
      const std::size_t size = std::min(rest.find_first_of(kBlank), rest.size());
      const std::string_view word = rest.substr(0, size);
      rest = trimmed(rest.substr(size));
      if (word == "\\") continue;
      if (!names_argument(word)) {
        if (word.starts_with("activation-checkpoint:")) {  // a class, chosen as a subcommand
          end("true");
          config.add("activation_checkpoint.mode", std::string(word.substr(word.find(':') + 1)), line.number);
        } else if (is_list(key)) {
          list += (list.empty() ? "" : ",") + unquoted(word);
        } else if (!key.empty()) {
          end(unquoted(word));
        }
        continue;  // the command itself: torchrun, train.py
      }
      end("true");
      const std::size_t equals = std::min(word.find('='), word.size());
      key = std::string(word.substr(2, equals - 2));
      std::replace(key.begin(), key.end(), '-', '_');
      key_line = line.number;
      const std::size_t dot = key.rfind('.'), last = dot == std::string::npos ? 0 : dot + 1;
      if (key.compare(last, 3, "no_") == 0) {
        key.erase(last, 3);
        end("false");
      } else if (equals < word.size()) {
        end(unquoted(word.substr(equals + 1)));
      }
    }
  }
  end("true");
  return config;
}

}  // namespace fsdp
