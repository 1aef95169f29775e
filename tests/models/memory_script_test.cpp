// Memory scripts: read by the compiler, refused where they break a rule.
#include "models/memory_script.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "models/input/names.h"

using namespace fsdp;
using What = MemoryScript::What;

namespace {

// True if `Make()` is a constant expression: what a literal given to MemoryScript must be.
template <auto Make>
concept Compiles = requires {
  typename std::bool_constant<(static_cast<void>(Make()), true)>;
};

static_assert(Compiles<[] { return MemoryScript::parse("+0 +o1 -y -e -i1 +o0 -0"); }>);
static_assert(!Compiles<[] { return MemoryScript::parse("+8 -8"); }>);     // there are eight temporaries
static_assert(!Compiles<[] { return MemoryScript::parse("+0 +1 -0"); }>);  // temporary 1 is left
static_assert(MemoryScript("+0 -0").steps().size() == 2);
static_assert(MemoryScript("+0 -y | -e -0").steps()[2].what == What::saved_read);
static_assert(!Compiles<[] { return MemoryScript::parse("+0 | | -0"); }>);  // once at most

std::string refusal(std::string_view text) {
  try {
    return "accepted: " + MemoryScript::parse(text).text();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
}

enum class Flag : std::uint8_t { red, green, blue };
template <Flag Last, bool twice = false>
constexpr std::string_view colour(Flag f) {
  if (f > Last) return {};
  return f == Flag::red ? "red" : f == Flag::green && !twice ? "green" : "blue";
}
static_assert(names_all<Flag>(colour<Flag::blue>, 3));
static_assert(!names_all<Flag>(colour<Flag::green>, 3));       // a name is missing
static_assert(!names_all<Flag>(colour<Flag::blue>, 2));        // the count is stale
static_assert(!names_all<Flag>(colour<Flag::blue, true>, 3));  // a name occurs twice

}  // namespace

TEST_CASE("a memory script is a list of steps in the order of its words") {
  const MemoryScript script("+0 -y +1 -0 +e +o -1 -i2 -r");
  const std::vector<MemoryScript::Step> expected = {{true, What::temporary, 0},    {false, What::output_gradient, 0},
                                                    {true, What::temporary, 1},    {false, What::temporary, 0},
                                                    {true, What::extra, 0},        {true, What::all_results, 0},
                                                    {false, What::temporary, 1},   {false, What::input, 2},
                                                    {false, What::saved_output, 0}};
  CHECK(std::vector<MemoryScript::Step>(script.steps().begin(), script.steps().end()) == expected);
  CHECK(MemoryScript().empty());
  CHECK(MemoryScript("").empty());
}

TEST_CASE("a memory script and its text are the same thing") {
  for (const char* text : {"", "+0 -0", "+0 +o1 -y -e -i1 +o0 -0", "-y1 +o1 -y +o0", "+1 -1 +1 -1", "+o", "-r",
                           "+0 +e -e +o -0", "+0 -y +1 -0 +2 +3 -2 -1 +1 +2 +o0 -1 +o1 -2 -3 -i0 -e"})
    CHECK(MemoryScript::parse(text).text() == text);
}

TEST_CASE("a memory script that breaks a rule is refused") {
  for (const char* text :
       {"0", "+", "+8 -8", "+x", "+00 -00", "+e1", "-y0", "+o8", "-i", "-i8", "+0  -0", " +0 -0", "+0 -0 "})
    CHECK_MESSAGE(refusal(text).find("accepted") == std::string::npos, text);
  CHECK(refusal("+0 +1 -0") == "memory script: a temporary is left at the end");
  CHECK(refusal("+0 +0 -0") == "memory script: a temporary appears twice, or goes without being there");
  CHECK(refusal("-0") == "memory script: a temporary appears twice, or goes without being there");
  CHECK(refusal("-o") == "memory script: results only appear");
  CHECK(refusal("+y") == "memory script: what was there before only goes");
  CHECK(refusal("-e -e") == "memory script: this occurs twice");
  CHECK(refusal("-e +e") == "memory script: this occurs twice");
  CHECK(refusal("+e -e -e") == "memory script: this occurs twice");
  CHECK(refusal("+o1 +o1") == "memory script: this occurs twice");
  CHECK(refusal("-y1 -y -y1") == "memory script: this occurs twice");
  CHECK(refusal("+o +o1") == "memory script: all results and a single one");
  std::string twenty = "+0 -0";
  for (int i = 1; i < 20; ++i) twenty += " +0 -0";
  CHECK(refusal(twenty).starts_with("accepted"));
  CHECK(refusal(twenty + " +0 -0") == "memory script: too long");
}

TEST_CASE("a name is read back as its value, and an unknown one is refused with all names") {
  CHECK(parse_name<Flag>(colour<Flag::blue>, 3, "green", "f", "colour") == Flag::green);
  CHECK_THROWS_WITH_AS((void)parse_name<Flag>(colour<Flag::blue>, 3, "pink", "f", "colour"),
                       "f: unknown colour 'pink'; use one of: red, green, blue", InputError);
}
