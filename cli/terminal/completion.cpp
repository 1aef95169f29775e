#include "cli/terminal/completion.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace fsdp::cli {
namespace {

// `$1`: the program as it was called. COMP_WORDS splits "--json=brief" at the sign.
constexpr std::string_view kBash = R"(# fsdp-plan: completion for bash
_fsdp_plan() {
  local IFS=$'\n'
  COMPREPLY=($("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _fsdp_plan fsdp-plan
)";
constexpr std::string_view kZsh = R"(#compdef fsdp-plan
# fsdp-plan: completion for zsh
_fsdp_plan() {
  local -a found
  found=("${(@f)$("$words[1]" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found[1]" ]]; then
    compadd -- "$found[@]"
  else
    _files
  fi
}
if [[ "$funcstack[1]" == _fsdp-plan ]]; then
  _fsdp_plan "$@"
else
  compdef _fsdp_plan fsdp-plan
fi
)";
constexpr std::string_view kFish = R"(# fsdp-plan: completion for fish
function __fsdp_plan_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c fsdp-plan -f -a '(__fsdp_plan_complete)'
)";
constexpr std::pair<const char*, std::string_view> kScripts[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

const OptionText* flag_named(const CommandText& command, const std::string& name) {
  for (const OptionText& o : command.options) {
    const auto names = names_of(o);
    if (!o.positional() && std::find(names.begin(), names.end(), name) != names.end()) return &o;
  }
  return nullptr;
}

std::vector<std::string> words_of(const OptionText& option) {
  return option.words == nullptr ? std::vector<std::string>() : option.words();
}

// Those that begin with `begin`, with `before` in front of each.
std::vector<std::string> beginning(const std::vector<std::string>& words, const std::string& begin,
                                   const std::string& before = "") {
  std::vector<std::string> found;
  for (const std::string& word : words)
    if (word.starts_with(begin)) found.push_back(before + word);
  return found;
}

// Of the flags that the command's help lists, the long names, and short ones that have no other.
std::vector<std::string> flags_of(const CommandText& command) {
  std::vector<std::string> flags;
  for (const OptionText& o : command.options)
    if (!o.positional() && !o.help.empty()) flags.push_back(names_of(o).back());
  return flags;
}

// The words without a flag so far, to find which of them is next.
std::size_t words_without_flag(const CommandText& command, const std::vector<std::string>& words, std::size_t from) {
  std::size_t count = 0;
  for (std::size_t i = from; i + 1 < words.size(); ++i) {
    if (!words[i].starts_with('-')) {
      ++count;
      continue;
    }
    const OptionText* flag = flag_named(command, words[i]);
    const bool value_follows = i + 2 < words.size() && !words[i + 1].starts_with('-');
    if (flag != nullptr && flag->takes_value && (!flag->may_stand_alone || value_follows)) ++i;
  }
  return count;
}

}  // namespace

std::vector<std::string> completions(const CommandText& program, const std::vector<std::string>& words) {
  if (words.empty()) return {};
  std::vector<std::string> line = words;
  const bool helping = line.size() > 1 && line.front() == "help";
  if (helping) line.erase(line.begin());
  const std::string now = line.back();
  std::size_t used = 0;
  const CommandText& command = named(program, {line.begin(), line.end() - 1}, used);

  // bash: "--json" "=" "br"
  const std::size_t n = line.size();
  if (n >= 3 && line[n - 2] == "=") {
    const OptionText* flag = flag_named(command, line[n - 3]);
    return flag == nullptr ? std::vector<std::string>() : beginning(words_of(*flag), now);
  }
  if (n >= 2 && now == "=") {
    const OptionText* flag = flag_named(command, line[n - 2]);
    return flag == nullptr ? std::vector<std::string>() : words_of(*flag);
  }
  if (const std::size_t sign = now.find('='); now.starts_with("--") && sign != std::string::npos) {
    const OptionText* flag = flag_named(command, now.substr(0, sign));
    if (flag == nullptr) return {};
    return beginning(words_of(*flag), now.substr(sign + 1), now.substr(0, sign + 1));
  }
  if (!helping && n >= 2 && line[n - 2].starts_with('-')) {
    const OptionText* flag = flag_named(command, line[n - 2]);
    if (flag != nullptr && flag->takes_value && !(flag->may_stand_alone && now.starts_with('-')))
      return beginning(words_of(*flag), now);
  }
  std::vector<std::string> offered;
  if (!command.below.empty() && used + 1 == n) {
    for (const CommandText& below : command.below) offered.push_back(below.name);
    if (&command == &program) offered.emplace_back(helping ? "words" : "help");
  }
  if (helping) return beginning(offered, now);
  if (now.starts_with('-')) return beginning(flags_of(command), now);
  const std::size_t position = words_without_flag(command, line, used);
  std::size_t at = 0;
  bool takes_word = false;
  for (const OptionText& o : command.options) {
    if (!o.positional()) continue;
    if (at++ != position && !o.many) continue;
    takes_word = true;
    for (std::string& word : words_of(o)) offered.push_back(std::move(word));
  }
  if (offered.empty() && !takes_word && now.empty()) offered = flags_of(command);
  return beginning(offered, now);
}

std::string completion_script(const std::string& shell) {
  for (const auto& [name, script] : kScripts)
    if (shell == name) return std::string(script);
  return "";
}

std::vector<std::string> completion_shells() {
  std::vector<std::string> names;
  for (const auto& [name, script] : kScripts) names.emplace_back(name);
  return names;
}

}  // namespace fsdp::cli
