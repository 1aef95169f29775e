// Memory inside an op of several kernels: what its implementation asks for and lets go, in order. A script is written
// as text and read by the compiler, so that a mistake does not compile.
//
//   const MemoryScript script("+0 +o1 -y -e -i1 +o0 -0");
//   for (const MemoryScript::Step& step : script.steps()) ... step.appears, step.what, step.index ...
//
// Words, with one blank between them:
//   +0 .. +7, -0 .. -7    temporary k of the op appears, goes
//   +o, +o0 .. +o7        all results appear, or result k does (forward: outputs; backward: gradients of the inputs)
//   +e, -e                what forward makes for backward only appears, goes (in forward: if nothing keeps it)
//   -y, -y1 .. -y7        backward: the gradient of the (first) output goes, or that of output k
//   -i0 .. -i7            input k goes, if the op is the last that needs it; backward: if forward kept it
//   -r                    backward: the saved output goes
//   |                     backward: from here on what was saved is read, for which a checkpointed module runs again
//
// Rules: a temporary appears before it goes, is gone at the end, and may then appear again; everything else occurs at
// most once (+e before -e); a script names either all results or single ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp {

class MemoryScript {
 public:
  enum class What : std::uint8_t {
    temporary,
    result,
    all_results,
    extra,
    output_gradient,
    input,
    saved_output,
    saved_read
  };
  struct Step {
    bool appears = false;  // false: goes
    What what = What::temporary;
    std::uint8_t index = 0;  // k of a temporary, a result, an input or an output
    friend constexpr bool operator==(const Step&, const Step&) = default;
  };
  static constexpr std::size_t kTemporaries = 8;  // and as many results and inputs can be named

  constexpr MemoryScript() = default;  // says nothing
  template <std::size_t N>
  consteval MemoryScript(const char (&text)[N]) : MemoryScript(parse({text, N - 1})) {}  // implicit: a literal is one

  // The same at run time, for tests. Throws std::invalid_argument for what breaks a rule above.
  [[nodiscard]] static constexpr MemoryScript parse(std::string_view text) {
    MemoryScript script;
    while (!text.empty()) {
      const std::size_t end = text.find(' ');
      script.append(step_of(text.substr(0, end)));
      if (end == std::string_view::npos) break;
      text.remove_prefix(end + 1);
      if (text.empty()) throw std::invalid_argument("memory script: a blank at the end");
    }
    for (std::size_t k = 0; k < kTemporaries; ++k)
      if (script.is_there(k)) throw std::invalid_argument("memory script: a temporary is left at the end");
    return script;
  }

  [[nodiscard]] constexpr bool empty() const { return count_ == 0; }
  [[nodiscard]] constexpr std::span<const Step> steps() const { return {steps_.data(), count_}; }
  [[nodiscard]] std::string text() const;  // parse(s.text()) == s
  friend constexpr bool operator==(const MemoryScript&, const MemoryScript&) = default;

 private:
  static constexpr std::size_t kMostSteps = 40;

  static constexpr Step step_of(std::string_view word) {
    if (word == "|") return {false, What::saved_read, 0};
    if (word.size() < 2 || (word[0] != '+' && word[0] != '-'))
      throw std::invalid_argument("memory script: a word begins with + or - and names something");
    const bool appears = word[0] == '+';
    const auto index = [&](std::size_t at) -> std::uint8_t {  // the digit that ends the word
      if (word.size() != at + 1 || word[at] < '0' || word[at] >= static_cast<char>('0' + kTemporaries))
        throw std::invalid_argument("memory script: expected one index from 0 to 7");
      return static_cast<std::uint8_t>(word[at] - '0');
    };
    const auto alone = [&](What what) -> Step {
      if (word.size() != 2) throw std::invalid_argument("memory script: this word takes no index");
      return {appears, what, 0};
    };
    switch (word[1]) {
      case 'o':
        if (!appears) throw std::invalid_argument("memory script: results only appear");
        return word.size() == 2 ? alone(What::all_results) : Step{true, What::result, index(2)};
      case 'e': return alone(What::extra);
      case 'y':
      case 'r':
      case 'i':
        if (appears) throw std::invalid_argument("memory script: what was there before only goes");
        if (word[1] == 'i') return {false, What::input, index(2)};
        if (word[1] == 'r') return alone(What::saved_output);
        if (word == "-y0") throw std::invalid_argument("memory script: -y says this");
        return word.size() == 2 ? alone(What::output_gradient) : Step{false, What::output_gradient, index(2)};
      default: return {appears, What::temporary, index(1)};
    }
  }

  [[nodiscard]] constexpr bool is_there(std::size_t temporary) const {
    bool there = false;
    for (const Step& s : steps())
      if (s.what == What::temporary && s.index == temporary) there = s.appears;
    return there;
  }

  constexpr void append(const Step& step) {
    if (count_ == kMostSteps) throw std::invalid_argument("memory script: too long");
    if (step.what == What::temporary && is_there(step.index) == step.appears)
      throw std::invalid_argument("memory script: a temporary appears twice, or goes without being there");
    for (const Step& s : steps()) {
      const bool again = step.what != What::temporary && s.what == step.what && s.index == step.index;
      const bool made_and_dropped = step.what == What::extra && s.appears && !step.appears;
      if (again && !made_and_dropped) throw std::invalid_argument("memory script: this occurs twice");
      if ((s.what == What::all_results && step.what == What::result) ||
          (s.what == What::result && step.what == What::all_results))
        throw std::invalid_argument("memory script: all results and a single one");
    }
    steps_[count_++] = step;
  }

  std::array<Step, kMostSteps> steps_{};
  std::uint8_t count_ = 0;
};

}  // namespace fsdp
