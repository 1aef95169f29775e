// A run that is killed at any moment, and disks that fill up or fail: what was saved before is there, and whole.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "tests/executor/checkpoint/saved_run.h"

extern char** environ;

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Calls `before(call)` ahead of every call; what it gives (if not 0) is the call's answer.
enum class Call : std::uint8_t {
  create,
  open,
  open_folder,
  write,
  read,
  sync,
  close,
  lock,
  make_folder,
  remove_file,
  remove_folder,
  rename,
  list,
  inspect
};
FileSystem watched(std::function<int(Call)> before) {
  FileSystem f = machine_file_system();
  const auto wrap = [&before]<class Result, class... Args>(Call call, std::function<Result(Args...)>& inner) {
    inner = [before, call, real = inner](Args... args) -> Result {
      if (const int instead = before(call); instead != 0) {
        if (call == Call::close) static_cast<void>(real(args...));
        return instead;
      }
      return real(args...);
    };
  };
  wrap(Call::create, f.create);
  wrap(Call::open, f.open);
  wrap(Call::open_folder, f.open_folder);
  wrap(Call::write, f.write);
  wrap(Call::read, f.read);
  wrap(Call::sync, f.sync);
  wrap(Call::close, f.close);
  wrap(Call::lock, f.lock);
  wrap(Call::make_folder, f.make_folder);
  wrap(Call::remove_file, f.remove_file);
  wrap(Call::remove_folder, f.remove_folder);
  wrap(Call::rename, f.rename);
  wrap(Call::list, f.list);
  wrap(Call::inspect, f.inspect);
  return f;
}

// This program again, as the run that is killed: at call or kernel `k`.
constexpr const char* kKillAt = "FSDP_PLAN_TEST_KILL_AT";
constexpr const char* kKillFolder = "FSDP_PLAN_TEST_KILL_FOLDER";

int run_killed(const std::string& directory, const std::string& at) {
  ::setenv(kKillAt, at.c_str(), 1);
  ::setenv(kKillFolder, directory.c_str(), 1);
  std::vector<std::string> words = {"/proc/self/exe", "--no-skip", "--test-case=the run that is killed"};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  REQUIRE(::posix_spawn(&child, argv[0], &quiet, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&quiet);
  ::unsetenv(kKillAt);
  ::unsetenv(kKillFolder);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("the run that is killed" * doctest::skip()) {
  const char* at = std::getenv(kKillAt);
  const char* directory = std::getenv(kKillFolder);
  if (at == nullptr || directory == nullptr) return;
  const std::string kind = std::string(at).substr(0, 2);
  const int k = std::stoi(std::string(at).substr(2));
  std::atomic<int> calls{0}, writes{0}, kernels{0};
  FileSystem files = watched([&](Call) {
    if (++calls == k && kind == "f:") ::raise(SIGKILL);
    return 0;
  });
  files.write = [&, real = files.write](int file, std::span<const std::byte> bytes) -> std::int64_t {
    if (++writes == k && kind == "t:") {  // half of what was to be written
      static_cast<void>(machine_file_system().write(file, bytes.first(bytes.size() / 2)));
      ::raise(SIGKILL);
    }
    return real(file, bytes);
  };
  static_cast<void>(go_on(directory, files, {}, [&](const Operation&, std::int64_t) {
    if (++kernels == k && kind == "k:") ::raise(SIGKILL);
  }));
  if (kind == "c:")
    write_bytes(std::string(directory) + "/counts",
                std::to_string(calls) + " " + std::to_string(writes) + " " + std::to_string(kernels));
}

TEST_CASE("a kill at any file operation or kernel, while loading, stepping and saving, leaves a whole checkpoint") {
  const std::map<std::int64_t, State> states = undisturbed();
  const Folder folder;
  make_base(folder / "base");
  const auto fresh = [&] {
    fs::remove_all(folder / "ckpt");
    fs::copy(folder / "base", folder / "ckpt", fs::copy_options::recursive);
    return folder / "ckpt";
  };
  REQUIRE(run_killed(fresh(), "c:0") == 0);
  int calls = 0, writes = 0, kernels = 0;
  std::ifstream(folder / "ckpt/counts") >> calls >> writes >> kernels;
  REQUIRE(calls > 120);
  REQUIRE(writes >= 6);
  REQUIRE(kernels > 100);
  int killed = 0;
  const auto kill_at = [&](const std::string& at) {
    CAPTURE(at);
    const int status = run_killed(fresh(), at);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    ++killed;
    check_recovered(folder / "ckpt", states, kBefore);
  };
  for (int k = 1; k <= calls; ++k) kill_at("f:" + std::to_string(k));
  for (int k = 1; k <= writes; ++k) kill_at("t:" + std::to_string(k));
  for (int k = 1; k <= kernels; ++k) kill_at("k:" + std::to_string(k));
  MESSAGE(killed << " kill points (" << calls << " file operations, " << kernels << " kernels)");
  CHECK(killed >= 300);
}

TEST_CASE("a call that fails ends the run, names the file, and leaves what was there") {
  const std::map<std::int64_t, State> states = undisturbed();
  struct Fault {
    Call call;
    int error;
    bool for_good;  // and every later one of its kind
  };
  int failures = 0;
  for (const Fault& fault :
       {Fault{Call::write, ENOSPC, true}, Fault{Call::write, ENOSPC, false}, Fault{Call::sync, EIO, false},
        Fault{Call::create, EACCES, false}, Fault{Call::create, EROFS, true}, Fault{Call::make_folder, EROFS, false},
        Fault{Call::make_folder, ENOSPC, true}, Fault{Call::rename, EIO, false}, Fault{Call::close, EIO, false},
        Fault{Call::open_folder, EMFILE, false}, Fault{Call::list, EIO, false}, Fault{Call::remove_file, EIO, false},
        Fault{Call::remove_folder, EIO, false}, Fault{Call::read, EIO, false}, Fault{Call::open, EACCES, false}}) {
    for (int n = 1;; ++n) {
      CAPTURE(std::string(std::strerror(fault.error)));
      CAPTURE(n);
      const Folder folder;
      make_base(folder / "ckpt");
      std::atomic<int> seen{0};
      const FileSystem files = watched([&](Call call) {
        if (call != fault.call) return 0;
        const int i = ++seen;
        return i == n || (fault.for_good && i > n) ? -fault.error : 0;
      });
      std::int64_t at_least = kBefore;
      const std::string said = failure(
          [&] { static_cast<void>(go_on(folder / "ckpt", files, [&](std::int64_t step) { at_least = step; })); });
      if (seen < n) break;
      bool saving_left = false;
      for (const auto& entry : fs::directory_iterator(folder / "ckpt"))
        saving_left = saving_left || entry.path().filename().string().starts_with(".saving");
      check_recovered(folder / "ckpt", states, at_least);
      // Closing what was only read cannot fail in a way that matters, and the probe of a folder that is claimed leaves
      // nothing behind.
      if (fault.call == Call::close || fault.call == Call::remove_folder) {
        if (said.empty()) continue;
      } else {
        CHECK_FALSE(saving_left);
      }
      CAPTURE(said);
      CHECK(holds(said, folder / "ckpt"));
      CHECK(holds(said, std::strerror(fault.error)));
      ++failures;
      if (fault.for_good && n > 12) break;
    }
  }
  MESSAGE(failures << " failures");
  CHECK(failures > 60);
}

TEST_CASE("a disk that takes less than it was given gets the rest; one that is interrupted is asked again") {
  const std::map<std::int64_t, State> states = undisturbed();
  const Folder folder;
  make_base(folder / "ckpt");
  FileSystem files = machine_file_system();
  std::atomic<int> calls{0};
  files.write = [&, real = files.write](int file, std::span<const std::byte> bytes) -> std::int64_t {
    if (++calls % 3 == 0) return -EINTR;
    return real(file, bytes.first(std::min<std::size_t>(bytes.size(), 37)));
  };
  files.read = [&, real = files.read](int file, std::span<std::byte> to, std::int64_t at) -> std::int64_t {
    if (++calls % 5 == 0) return -EINTR;
    return real(file, to.first(std::min<std::size_t>(to.size(), 11)), at);
  };
  static_cast<void>(go_on(folder / "ckpt", files));
  check_recovered(folder / "ckpt", states, kAfter);
}
