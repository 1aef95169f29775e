// Configurations that are Python: what they assign and what they give to known classes, without running them.
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "planner/lint/flat.h"

namespace fsdp {
namespace {

struct KnownClass {
  std::string_view call, section;
};
constexpr std::array<KnownClass, 4> kClasses = {{{"ParallelismConfig(", "parallelism"},
                                                 {"TrainingConfig(", "training"},
                                                 {"CompileConfig(", "compile"},
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

// "2 * 8_192" -> "16384"; a text without its quotes; "FullAC.Config()" as it is.
std::string python_value(std::string_view text) {
  text = python_trimmed(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    return std::string(text.substr(1, text.size() - 2));
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
    assignments();
    policies();
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

  // "config.parallelism.data_parallel_shard_degree = 8", without the name before the first dot but for one that
  // transformers' configuration has.
  void assignments() {
    std::string_view rest = code_;
    for (int number = 1; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = python_trimmed(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const std::size_t equals = line.find(" = ");
      const std::size_t dot = line.find('.');
      if (line.find("gradient_checkpointing_enable(") != std::string_view::npos)
        config_.add("gradient_checkpointing_enable", "true", number);
      if (equals == std::string_view::npos || dot > equals) continue;
      const std::string_view target = line.substr(0, equals);
      if (!std::all_of(target.begin(), target.end(), [](char c) { return is_name(c) || c == '.'; })) continue;
      if (target == "config.base_model_fsdp_plan")
        config_.add(std::string(target), python_value(line.substr(equals + 3)), number);
      const std::string key(target.substr(dot + 1));
      const std::size_t section = key.find('.');
      if (section == std::string::npos && key != "activation_checkpoint") continue;
      if (key != "activation_checkpoint" && !is_section(key.substr(0, section))) continue;
      if (key != "activation_checkpoint") config_.add(key, python_value(line.substr(equals + 3)), number);
    }
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
