// Transcripts: command lines and what the real program must answer, one file per topic in tests/cli/*.txt.
//
//   $ fsdp-plan show model nope          a command (any shell command), run in a folder of its own that lasts for the
//                                        file
//   = 2                                  its exit code (0 where not given)
//   2~ nope                              standard error holds this text; 1~ : standard output does
//   1! [                                 standard output does not hold this text
//   1{ plan prediction                   standard output is one JSON object with these keys, and nothing else
//
// On top of that: exit 2 says exactly one sentence on standard error and nothing on standard output, and no command may
// show a sanitizer's report. Lines that start with # are comments.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Expectation {
  char stream = '1';  // '1' or '2'
  char rule = '~';    // '~' holds, '!' does not hold, '{' JSON keys
  std::string text;
};
struct Command {
  std::string line;
  int line_number = 0, exit_code = 0;
  std::vector<Expectation> expectations;
};

std::vector<Command> read_transcript(const fs::path& file) {
  std::vector<Command> commands;
  std::ifstream in(file);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    if (line.rfind("$ ", 0) == 0) {
      commands.push_back({line.substr(2), number, 0, {}});
    } else if (line.rfind("= ", 0) == 0 && !commands.empty()) {
      commands.back().exit_code = std::stoi(line.substr(2));
    } else if (line.size() > 3 && (line[0] == '1' || line[0] == '2') && line[2] == ' ' && !commands.empty()) {
      commands.back().expectations.push_back({line[0], line[1], line.substr(3)});
    } else {
      FAIL(file.filename().string() << ":" << number << ": not a line of a transcript: " << line);
    }
  }
  return commands;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class Sandbox {  // an empty folder with fsdp-plan on the PATH
 public:
  Sandbox() : root_(fs::temp_directory_path() / ("fsdp-plan-cli-" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_ / "bin");
    fs::create_directories(root_ / "work");
    fs::create_symlink(FSDP_PLAN_PROGRAM, root_ / "bin" / "fsdp-plan");
  }
  ~Sandbox() { fs::remove_all(root_); }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  int run(const std::string& command) const {
    std::ofstream(root_ / "command") << command << "\n";
    const std::string root = root_.string();
    const std::string shell = "cd '" + root + "/work' && PATH='" + root +
                              "/bin':\"$PATH\" CONFIGS='" FSDP_TESTS_DIR "/../models/configs' sh '" + root +
                              "/command' >'" + root + "/out' 2>'" + root + "/err' </dev/null";
    const int status = std::system(shell.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] std::string out() const { return text_of(root_ / "out"); }
  [[nodiscard]] std::string err() const { return text_of(root_ / "err"); }

 private:
  fs::path root_;
};

void check_keys(const std::string& text, const std::string& keys) {
  const auto document = nlohmann::json::parse(text, nullptr, false);
  REQUIRE(document.is_object());
  std::istringstream words(keys);
  for (std::string key; words >> key;) CHECK_MESSAGE(document.contains(key), "no key ", key);
}

void check_expectation(const Expectation& e, const std::string& out, const std::string& err) {
  const std::string& text = e.stream == '1' ? out : err;
  const bool holds = text.find(e.text) != std::string::npos;
  if (e.rule == '~') CHECK_MESSAGE(holds, "missing in stream ", std::string(1, e.stream), ": ", e.text);
  else if (e.rule == '!') CHECK_MESSAGE(!holds, "unwanted in stream ", std::string(1, e.stream), ": ", e.text);
  else if (e.rule == '{') check_keys(text, e.text);
  else FAIL("unknown rule " << e.rule);
}

void check_command(const Sandbox& sandbox, const Command& command) {
  const int code = sandbox.run(command.line);
  const std::string out = sandbox.out();
  const std::string err = sandbox.err();
  CAPTURE(out.substr(0, 2000));
  CAPTURE(err);
  CHECK(code == command.exit_code);
  CHECK(err.find("Sanitizer") == std::string::npos);
  CHECK(err.find("runtime error") == std::string::npos);
  for (const Expectation& e : command.expectations) check_expectation(e, out, err);
  if (command.exit_code != 2 || command.line.rfind("fsdp-plan", 0) != 0) return;
  CHECK(out.empty());
  CHECK(std::count(err.begin(), err.end(), '\n') == 1);
  CHECK(err.rfind("fsdp-plan: ", 0) == 0);
}

}  // namespace

TEST_CASE("the program answers as the transcripts say") {
  ::setenv("ASAN_OPTIONS", "exitcode=99", 1);
  ::setenv("UBSAN_OPTIONS", "exitcode=99:print_stacktrace=1", 1);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(FSDP_TRANSCRIPTS)) {
    if (entry.path().extension() != ".txt") continue;
    ++files;
    const std::string file = entry.path().filename().string();
    CAPTURE(file);
    const Sandbox sandbox;
    for (const Command& command : read_transcript(entry.path())) {
      CAPTURE(command.line_number);
      CAPTURE(command.line);
      check_command(sandbox, command);
    }
  }
  CHECK(files >= FSDP_TRANSCRIPT_FILES);
}
