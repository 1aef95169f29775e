// Files that commands write: complete or as they were before, behind symbolic links too.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/cli/program.h"

using fsdp::testing::Answer;
using fsdp::testing::Program;
namespace fs = std::filesystem;

namespace {

const std::string kWrites = "fsdp-plan plan --model gpt2 --cluster dgx-h100 --seq-len 128 --wrap block --micro-batch 1";

bool is_plan(const std::string& text) {
  return text.find("\"schema\": \"fsdp-plan/plan/1\"") != std::string::npos && text.back() == '\n';
}

// Refused as bad input, in one sentence that names the path.
void refused(const Answer& answer, const std::string& path, const std::string& why) {
  CHECK(answer.code == 2);
  CHECK(answer.out.empty());
  CHECK_MESSAGE(answer.err.find(path) != std::string::npos, answer.err);
  CHECK_MESSAGE(answer.err.find(why) != std::string::npos, answer.err);
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("writing through a symbolic link replaces the file that it leads to, not the link") {
  const Program program;
  const fs::path work = program.work();
  fs::create_directories(work / "store" / "deep");
  std::ofstream(work / "store" / "deep" / "real.json") << "from before";
  fs::create_symlink("deep/real.json", work / "store" / "inner.json");  // relative to its own folder
  fs::create_symlink(work / "store" / "inner.json", work / "link.json");
  fs::permissions(work / "store" / "deep" / "real.json", fs::perms::owner_read | fs::perms::owner_write);
  const Answer answer = program.run(kWrites + " -o link.json");
  CHECK_MESSAGE(answer.code == 0, answer.err);
  CHECK(fs::is_symlink(work / "link.json"));
  CHECK(fs::is_symlink(work / "store" / "inner.json"));
  CHECK(is_plan(program.text_of("store/deep/real.json")));
  CHECK(files_in(work) == 2);
  CHECK(files_in(work / "store" / "deep") == 1);
  struct stat info {};
  REQUIRE(::stat((work / "link.json").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777U) == 0600U);  // as the file was that it replaced
}

TEST_CASE("a link that leads nowhere yet makes the file that it names") {
  const Program program;
  fs::create_directories(program.work() / "store");
  fs::create_symlink("store/new.json", program.work() / "link.json");
  CHECK(program.run(kWrites + " -o link.json").code == 0);
  CHECK(fs::is_symlink(program.work() / "link.json"));
  CHECK(is_plan(program.text_of("store/new.json")));
  fs::create_symlink("no/such/folder/new.json", program.work() / "lost.json");
  refused(program.run(kWrites + " -o lost.json"), "lost.json", "no/such/folder");
  CHECK(fs::is_symlink(program.work() / "lost.json"));
}

TEST_CASE("links in a ring, and links to a folder, are refused before any work") {
  const Program program;
  fs::create_symlink("b.json", program.work() / "a.json");
  fs::create_symlink("a.json", program.work() / "b.json");
  refused(program.run(kWrites + " -o a.json"), "a.json", "symbolic links");
  CHECK(fs::is_symlink(program.work() / "a.json"));
  fs::create_directories(program.work() / "folder");
  fs::create_symlink("folder", program.work() / "to_folder");
  for (const char* path : {"folder", "to_folder", "folder/", "a_new_folder/"})
    refused(program.run(kWrites + " -o " + path), path, "folder");
  CHECK(files_in(program.work() / "folder") == 0);
  CHECK(files_in(program.work()) == 4);
}

TEST_CASE("standard output and pipes are written in place, behind a link too") {
  const Program program;
  fs::create_symlink("/proc/self/fd/1", program.work() / "my_stdout");  // as /dev/stdout is one
  for (const std::string name : {"/dev/fd/1", "my_stdout", "/dev/fd/3"}) {
    CAPTURE(name);
    const Answer answer = program.run("echo before > both; " + kWrites + " -o " + name + " >> both 3>> both");
    CHECK_MESSAGE(answer.code == 0, answer.err);
    const std::string both = program.text_of("both");
    CHECK(both.rfind("before\n", 0) == 0);
    CHECK(both.find("\"schema\": \"fsdp-plan/plan/1\"") != std::string::npos);
    CHECK(both.find("Fits: ") != std::string::npos);
  }
  CHECK(fs::is_symlink(program.work() / "my_stdout"));
  fs::create_symlink("/dev/null", program.work() / "nowhere");
  CHECK(program.run(kWrites + " -o nowhere").code == 0);
  CHECK(fs::is_symlink(program.work() / "nowhere"));
  CHECK(is_plan(
      program.run("mkfifo pipe; timeout 20 cat pipe > taken & " + kWrites + " -o pipe > said; wait; cat taken").out));
}

TEST_CASE("descriptors that cannot be written are refused before any work") {
  const Program program;
  for (const std::string name : {"/dev/fd/9", "/dev/fd/0"}) {
    const Answer answer = program.run("fsdp-plan run --plan none.json --model gpt2 --backend host -o " + name);
    CHECK(answer.code == 2);
    CHECK_MESSAGE(answer.err.find(name + ": cannot be written (Bad file descriptor)") != std::string::npos, answer.err);
  }
}

TEST_CASE("a name that is no link is not said to lead anywhere") {
  const Program program;
  const Answer answer = program.run("cd /proc && " + kWrites + " -o x.json");
  CHECK(answer.code == 2);
  CHECK_MESSAGE(answer.err.find("leads to") == std::string::npos, answer.err);
}

TEST_CASE("a folder that cannot be written, and a disk that is full, lose nothing") {
  const Program program;
  fs::create_directories(program.work() / "store");
  std::ofstream(program.work() / "store" / "real.json") << "from before";
  fs::create_symlink("store/real.json", program.work() / "link.json");
  // A limit on the size of files stands for the full disk: 512 bytes hold no plan.
  const Answer full =
      program.run("ulimit -f 1; " + kWrites + " -o link.json 2> said > out; code=$?; cat said >&2; exit $code");
  CHECK(full.code == 3);
  CHECK_MESSAGE(full.err.find("link.json: could not be written") != std::string::npos, full.err);
  CHECK(program.text_of("store/real.json") == "from before");
  CHECK(files_in(program.work() / "store") == 1);
  refused(program.run(kWrites + " -o /proc/nothing.json"), "/proc/nothing.json", "cannot be written");
  fs::create_symlink("/proc/nothing.json", program.work() / "nothing.json");
  refused(program.run(kWrites + " -o nothing.json"), "nothing.json", "leads to /proc/nothing.json");
  if (::geteuid() == 0) return;  // root writes anywhere
  fs::permissions(program.work() / "store", fs::perms::owner_read | fs::perms::owner_exec);
  refused(program.run(kWrites + " -o link.json"), "link.json", "cannot be written");
  fs::permissions(program.work() / "store", fs::perms::owner_all);
  CHECK(program.text_of("store/real.json") == "from before");
}

TEST_CASE("two outputs that are one file behind a link are refused") {
  const Program program;
  fs::create_symlink("plan.json", program.work() / "link.yaml");
  refused(program.run(kWrites + " -o plan.json --emit accelerate --emit-to link.yaml"), "plan.json",
          "two files at once");
  CHECK_FALSE(fs::exists(program.work() / "plan.json"));
}

TEST_CASE("a plan that --compare reads is no output") {
  const Program program;
  REQUIRE(program.run(kWrites + " -o theirs.json").code == 0);
  const std::string theirs = program.text_of("theirs.json"), compares = kWrites + " --compare theirs.json ";
  for (const char* output :
       {"-o theirs.json", "-o ./theirs.json", "--emit pytorch --emit-to theirs.json", "--report theirs.json"})
    refused(program.run(compares + output), "theirs.json", "two files at once");
  CHECK(program.text_of("theirs.json") == theirs);
  CHECK(program.run(compares + "-o ours.json").code == 0);
}
