// Rooms name settings, and cli/field_flags.cpp alone names the flag of each: no setting is without one, and no row
// names a flag that no command has.
#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>

#include "tests/house/inner_order.h"
#include "tests/house/tree.h"

using namespace fsdp;

namespace {

const std::filesystem::path kTable = "cli/field_flags.cpp";

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (auto m = std::sregex_iterator(text.begin(), text.end(), regex); m != std::sregex_iterator(); ++m)
    found.insert((*m)[1].str());
  return found;
}

// The names in `setting(...)` of a source.
std::set<std::string> settings_in(const std::string& text) {
  std::set<std::string> names;
  for (const std::string& call : matches(text, R"re(\bsetting\(([^()]*)\))re"))
    names.merge(matches(call, R"re("([a-z][a-z_]*)")re"));
  return names;
}

std::set<std::string> settings_below_cli(const Tree& tree) {
  std::set<std::string> names;
  for (const SourceFile& file : tree)
    if (rooms_below_cli().contains(room_of(file.path)) && file.path.ends_with(".cpp"))
      names.merge(settings_in(file.text));
  return names;
}

}  // namespace

TEST_CASE("every setting below cli has its flag") {
  const std::set<std::string> rows = matches(text_of(repository() / kTable), R"re(\{"([a-z_]+)", "--)re");
  const std::set<std::string> names = settings_below_cli(read_repository());
  CHECK(names.size() >= 20);
  for (const std::string& name : names) CHECK_MESSAGE(rows.count(name) == 1, "no flag for the setting ", name);
  CHECK(settings_in(R"(throw InputError(setting(a ? "one" : "two"), "three");)") ==
        std::set<std::string>{"one", "two"});
}

TEST_CASE("every flag of the table is one that a command has") {
  std::string commands;
  for (const SourceFile& file : read_repository())
    if (room_of(file.path) == "cli" && file.path.ends_with(".cpp") && file.path != kTable) commands += file.text;
  const std::set<std::string> flags = matches(text_of(repository() / kTable), R"re("(--[a-z0-9-]+))re");
  CHECK(flags.size() >= 30);
  for (const std::string& flag : flags)
    CHECK_MESSAGE(commands.find("\"" + flag + "\"") != std::string::npos, "no command has ", flag);
}
