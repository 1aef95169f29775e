// Configurations that are Python: what they assign and what they give to known classes, without running them.
#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "planner/lint/flat.h"

namespace fsdp {
namespace {

struct KnownClass {
  std::string_view call, section;
};
constexpr std::array<KnownClass, 6> kClasses = {{{"ParallelismConfig(", "parallelism"},
                                                 {"TrainingConfig(", "training"},
                                                 {"CompileConfig(", "compile"},
                                                 {"ActivationCheckpointConfig(", "activation_checkpoint"},
                                                 {"OptimizersContainer.Config(", "optimizer"},
                                                 {"DistributedConfig(", "DistributedConfig"}}};

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

std::string_view python_trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The text with comments and the insides of strings that span lines blanked out; lines stay where they are.
std::string without_comments(std::string_view text) {
  std::string out(text);
  char quote = 0;
  bool triple = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char c = out[i];
    if (quote == 0) {
      if (c == '#') {
        for (; i < out.size() && out[i] != '\n'; ++i) out[i] = ' ';
      } else if (c == '"' || c == '\'') {
        quote = c;
        triple = out.compare(i, 3, std::string(3, c)) == 0;
        if (triple) out.replace(i, 3, "   ");
        if (triple) i += 2;
      }
    } else if (triple) {
      if (out.compare(i, 3, std::string(3, quote)) == 0) {
        out.replace(i, 3, "   ");
        i += 2;
        quote = 0;
      } else if (c != '\n') {
        out[i] = ' ';
      }
    } else if (c == '\\') {
      ++i;
    } else if (c == quote || c == '\n') {
      quote = 0;
    }
  }
  return out;
}

std::string without_quotes(std::string_view text) {
  text = python_trimmed(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  return std::string(text);
}

// "2 * 8_192" -> "16384"; a text without its quotes; "['a', 'b']" -> "a,b"; "FullAC.Config()" as it is.
std::string python_value(std::string_view text) {
  text = python_trimmed(text);
  if (const std::string bare = without_quotes(text); bare.size() < text.size()) return bare;
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    std::string joined;
    for (text = text.substr(1, text.size() - 2); !text.empty();) {
      const std::size_t end = std::min(text.find(','), text.size());
      const std::string item = without_quotes(text.substr(0, end));
      if (!item.empty()) joined += (joined.empty() ? "" : ",") + item;
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return joined;
  }
  std::int64_t product = 1;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t star = std::min(rest.find('*'), rest.size());
    std::string factor(python_trimmed(rest.substr(0, star)));
    std::erase(factor, '_');
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(factor.data(), factor.data() + factor.size(), number);
    if (error != std::errc() || end != factor.data() + factor.size() || factor.empty() ||
        __builtin_mul_overflow(product, number, &product))
      return std::string(text);
    rest.remove_prefix(std::min(star + 1, rest.size()));
    if (star + 1 == text.size()) return std::string(text);
  }
  return text.empty() ? std::string() : std::to_string(product);
}

struct Part {
  std::string_view text;
  std::size_t at;
};
struct Parts {
  std::vector<Part> parts;
  std::size_t end = 0;  // of the bracket that closes, or of the text
};

// What stands between commas, up to the bracket that closes; `at`: just behind the one that opens.
Parts parts_of(std::string_view text, std::size_t at) {
  std::vector<Part> parts;
  int depth = 0;
  char quote = 0;
  std::size_t begin = at;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != 0) {
      if (c == '\\') ++at;
      else if (c == quote) quote = 0;
      continue;
    }
    if (c == '"' || c == '\'') quote = c;
    else if (c == '(' || c == '[' || c == '{') ++depth;
    else if ((c == ')' || c == ']' || c == '}') && depth-- == 0) break;
    if (c == ',' && depth == 0) {
      parts.push_back({text.substr(begin, at - begin), begin});
      begin = at + 1;
    }
  }
  at = std::min(at, text.size());  // behind a '\\' that is the last character
  if (!python_trimmed(text.substr(begin, at - begin)).empty()) parts.push_back({text.substr(begin, at - begin), begin});
  return {std::move(parts), at};
}

class PythonReader {
 public:
  PythonReader(std::string_view text, std::string_view where)
      : config_{std::string(where)}, code_(without_comments(text)) {}

  FlatConfig read() {
    for (const KnownClass& known : kClasses) calls(known);
    converters();
    assignments();
    policies();
    if (const std::size_t at = code_.find("ChunkedLossWrapper.Config("); at != std::string::npos)
      config_.add("loss.ChunkedLossWrapper", "true", line_of(at));
    return std::move(config_);
  }

 private:
  [[nodiscard]] int line_of(std::size_t at) const {
    return 1 + static_cast<int>(std::count(code_.begin(), code_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }

  void calls(const KnownClass& known) {
    for (std::size_t at = code_.find(known.call); at != std::string::npos; at = code_.find(known.call, at)) {
      const std::size_t inside = at + known.call.size();
      if (at > 0 && is_name(code_[at - 1])) {
        at = inside;
        continue;
      }
      const Parts call = parts_of(code_, inside);
      for (const Part& part : call.parts) argument(std::string(known.section) + ".", part);
      at = call.end;  // no character is read twice
    }
  }

  void argument(const std::string& section, const Part& part) {
    const std::size_t equals = part.text.find('=');
    if (equals == std::string_view::npos) return;
    const std::string key = section + std::string(python_trimmed(part.text.substr(0, equals)));
    const std::string_view value = python_trimmed(part.text.substr(equals + 1));
    if (!value.starts_with('{')) return config_.add(key, python_value(value), line_of(part.at));
    const auto inside = static_cast<std::size_t>(value.data() - code_.data()) + 1;
    for (const Part& entry : parts_of(code_, inside).parts) {
      const std::size_t colon = entry.text.find(':');
      if (colon == std::string_view::npos) continue;
      config_.add(key + "." + python_value(entry.text.substr(0, colon)), python_value(entry.text.substr(colon + 1)),
                  line_of(entry.at));
    }
  }

  // "Float8LinearConverter.Config(recipe_name='rowwise')": that it is there, and what it is given.
  void converters() {
    const std::string_view call = "Converter.Config(";
    for (std::size_t at = code_.find(call); at != std::string::npos;) {
      std::size_t begin = at;
      while (begin > 0 && is_name(code_[begin - 1])) --begin;
      const std::string name = code_.substr(begin, at + call.find('.') - begin);
      config_.add(name, "true", line_of(begin));
      const Parts given = parts_of(code_, at + call.size());
      for (const Part& part : given.parts) argument(name + ".", part);
      at = code_.find(call, given.end);
    }
  }

  struct Assignment {
    std::string_view target, value;
    int line;
  };
  // "config.training.steps = 5", on one line.
  std::vector<Assignment> dotted_assignments() {
    std::vector<Assignment> all;
    std::string_view rest = code_;
    for (int number = 1; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = python_trimmed(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.find("gradient_checkpointing_enable(") != std::string_view::npos)
        config_.add("gradient_checkpointing_enable", "true", number);
      const std::size_t equals = line.find('=');
      if (equals == std::string_view::npos || line.substr(equals).starts_with("==")) continue;
      const std::string_view target = python_trimmed(line.substr(0, equals));
      if (target.find('.') != std::string_view::npos &&
          std::all_of(target.begin(), target.end(), [](char c) { return is_name(c) || c == '.'; }))
        all.push_back({target, line.substr(equals + 1), number});
    }
    return all;
  }

  // What is set of a configuration: of "config", and of whatever else has one of the known sections. Keys are without
  // the name before the first dot but for one that transformers' configuration has.
  void assignments() {
    const std::vector<Assignment> all = dotted_assignments();
    const auto owner = [](const Assignment& a) { return a.target.substr(0, a.target.find('.')); };
    const auto key_of = [](const Assignment& a) { return a.target.substr(a.target.find('.') + 1); };
    const auto known = [&](const Assignment& a) {
      const std::string_view key = key_of(a);
      return key.find('.') != std::string_view::npos && is_section(key.substr(0, key.find('.')));
    };
    std::set<std::string_view> owners = {"config"};
    for (const Assignment& a : all)
      if (known(a)) owners.insert(owner(a));
    for (const Assignment& a : all) {
      if (!owners.contains(owner(a))) continue;
      std::string key(key_of(a));
      if (key == "activation_checkpoint") continue;  // below
      if (a.target == "config.base_model_fsdp_plan") key = a.target;
      else if (key.find('.') == std::string::npos && calls_known(a.value)) continue;
      if (known(a) || key == a.target || !config_.has(key)) config_.add(key, python_value(a.value), a.line);
    }
  }

  static bool calls_known(std::string_view value) {
    return std::any_of(kClasses.begin(), kClasses.end(),
                       [&](const KnownClass& k) { return value.find(k.call) != std::string_view::npos; });
  }
  static bool is_section(std::string_view name) {
    return std::any_of(kClasses.begin(), kClasses.end(), [&](const KnownClass& k) { return k.section == name; });
  }

  // activation_checkpoint = FullAC.Config(), as an assignment or an argument.
  void policies() {
    const std::string_view name = "activation_checkpoint";
    for (std::size_t at = code_.find(name); at != std::string::npos; at = code_.find(name, at + 1)) {
      std::size_t i = at + name.size();
      while (i < code_.size() && code_[i] == ' ') ++i;
      if (i >= code_.size() || code_[i] != '=') continue;
      std::string_view value = python_trimmed(std::string_view(code_).substr(i + 1));
      if (value.starts_with("ActivationCheckpointConfig(")) continue;  // a section of its own
      const std::string mode = value.starts_with("FullAC")        ? "full"
                               : value.starts_with("SelectiveAC") ? "selective"
                               : value.starts_with("None")        ? "none"
                                                                  : std::string(value.substr(0, value.find('(')));
      config_.add("activation_checkpoint.mode", mode.substr(0, 60), line_of(at));
    }
  }

  FlatConfig config_;
  std::string code_;
};

}  // namespace

bool looks_like_python(std::string_view text) {
  for (const std::string_view sign : {"import ", "from ", "def ", "\nimport ", "\nfrom ", "\ndef "}) {
    const std::size_t at = text.find(sign);
    if (at != std::string_view::npos && (at == 0 || sign.front() == '\n')) return true;
  }
  return text.find("config.parallelism.") != std::string_view::npos ||
         std::any_of(kClasses.begin(), kClasses.end(),
                     [&](const KnownClass& k) { return text.find(k.call) != std::string_view::npos; });
}

FlatConfig flat_python(std::string_view text, std::string_view where) { return PythonReader(text, where).read(); }

}  // namespace fsdp
