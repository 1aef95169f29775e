// The program under test, called through a shell in a folder of the test's own. Needs FSDP_PLAN_PROGRAM.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temporary_folder.h"

namespace fsdp::testing {

struct Answer {
  int code = -1;
  std::string out, err;
};

inline bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

class Program {
 public:
  Program() {
    std::filesystem::create_directories(folder_.path() / "bin");
    std::filesystem::create_directories(folder_.path() / "work");
    std::filesystem::create_symlink(FSDP_PLAN_PROGRAM, folder_.path() / "bin" / "fsdp-plan");
  }

  // Any shell command; "fsdp-plan" is on its PATH.
  [[nodiscard]] Answer run(const std::string& command) const {
    (void)folder_.write("command", command + "\n");
    const std::string root = folder_.path().string();
    const int status = std::system(("cd '" + root + "/work' && PATH='" + root + "/bin':\"$PATH\" sh '" + root +
                                    "/command' >'" + root + "/out' 2>'" + root + "/err' </dev/null")
                                       .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text_of("../out"), text_of("../err")};
  }
  // Of a file in the folder that commands run in; empty if there is none.
  [[nodiscard]] std::string text_of(const std::string& name) const {
    std::ifstream in(work() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  [[nodiscard]] std::filesystem::path work() const { return folder_.path() / "work"; }

 private:
  TemporaryFolder folder_;
};

}  // namespace fsdp::testing
