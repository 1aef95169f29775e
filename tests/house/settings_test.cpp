// Rooms name settings, and cli/field_flags.cpp alone names the flag of each: no setting is without one, and no row
// names a flag that no command has.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = fs::path(FSDP_TESTS_DIR).parent_path();

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

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

std::set<std::string> settings_below_cli() {
  std::set<std::string> names;
  for (const char* room : {"models", "planner", "simulator", "executor", "viz"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / room))
      if (entry.path().extension() == ".cpp") names.merge(settings_in(text_of(entry.path())));
  return names;
}

}  // namespace

TEST_CASE("every setting below cli has its flag") {
  const std::set<std::string> rows = matches(text_of(kRoot / "cli/field_flags.cpp"), R"re(\{"([a-z_]+)", "--)re");
  const std::set<std::string> names = settings_below_cli();
  CHECK(names.size() >= 20);
  for (const std::string& name : names) CHECK_MESSAGE(rows.count(name) == 1, "no flag for the setting ", name);
  CHECK(settings_in(R"(throw InputError(setting(a ? "one" : "two"), "three");)") ==
        std::set<std::string>{"one", "two"});
}

TEST_CASE("every flag of the table is one that a command has") {
  std::string commands;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "cli"))
    if (entry.path().extension() == ".cpp" && entry.path().filename() != "field_flags.cpp")
      commands += text_of(entry.path());
  const std::set<std::string> flags = matches(text_of(kRoot / "cli/field_flags.cpp"), R"re("(--[a-z-]+))re");
  CHECK(flags.size() >= 30);
  for (const std::string& flag : flags)
    CHECK_MESSAGE(commands.find("\"" + flag + "\"") != std::string::npos, "no command has ", flag);
}
