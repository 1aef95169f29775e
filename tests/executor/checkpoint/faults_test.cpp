// What can go wrong with checkpoints: a run that is killed at any moment, a machine that loses power, disks that fill
// up or fail, files that are damaged or mixed up. What was saved before is always there, and whole.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <random>

#include "tests/support/checkpoint_support.h"

extern char** environ;

using namespace fsdp;
using namespace fsdp::testing;

namespace {

namespace fs = std::filesystem;

// --- the run that things happen to
// ------------------------------------------------------------------------------------------ Two ranks; a checkpoint of
// step 2 is there, steps 3 and 4 are to be saved, two are kept.

ModelGraph small_model() { return chain({3, 4, 6}); }
ShardingPlan small_plan() {
  PlanWords w;
  w.shard = 2;
  w.micro_batches = {2};
  w.seq_len = 3;
  return make_plan(small_model(), w);
}

constexpr int kBefore = 2, kAfter = 4;

void make_base(const std::string& directory) {
  const ModelGraph model = small_model();
  static_cast<void>(train(model, small_plan(), kBefore, saving(model, small_plan(), directory)));
  fs::create_directories(fs::path(directory) / "step-3");  // not names of ours, and nothing of ours
  write_bytes(directory + "/notes.txt", "mine");
  write_bytes(directory + "/step-3/a", "b");
}

RunResult go_on(const std::string& directory, const FileSystem& files,
                const std::function<void(std::int64_t)>& saved = {},
                const std::function<void(const Operation&, std::int64_t)>& in_kernel = {}) {
  const ModelGraph model = small_model();
  const ShardingPlan plan = small_plan();
  const auto from = std::make_shared<const Checkpoint>(directory, files);
  check_resumable(*from, model, plan);
  RunOptions options;
  resume_from(from, options.training);
  SaveOptions save;
  save.directory = directory;
  save.every = 1;
  save.keep = 2;
  save.steps_before = options.training.steps_done;
  save.sequences_before = *options.training.sequences_done;
  save.block_bytes = 16;
  save.files = files;
  const auto claim = claim_folder(files, directory, save.steps_before);
  options.after_step = [&, write = checkpoint_saver(model, plan, save)](const RankState& s) {
    write(s);
    if (saved && s.device.rank() == 0) saved(s.steps_done);
  };
  options.in_kernel = in_kernel;
  options.warmup_steps = 1;
  options.steps = kAfter - kBefore - 1;
  return execute(model, plan, options);
}

// What the steps must hold, from a run to which nothing happens; by step. Made once per test case.
std::map<std::int64_t, State> undisturbed() {
  const Folder folder;
  make_base(folder / "ckpt");
  std::map<std::int64_t, State> states;
  states[kBefore] = state_in(Checkpoint(folder / "ckpt"));
  static_cast<void>(go_on(folder / "ckpt", machine_file_system(),
                          [&](std::int64_t step) { states[step] = state_in(Checkpoint(folder / "ckpt")); }));
  REQUIRE(states.size() == 3);
  return states;
}

// Everything with the name of a checkpoint is one, equal to the undisturbed one's; the newest is of step `at_least` or
// later; what is not ours is as it was; and the next run that saves clears up.
void check_recovered(const std::string& directory, const std::map<std::int64_t, State>& states, std::int64_t at_least) {
  const FileSystem files = machine_file_system();
  const std::vector<std::int64_t> steps = saved_steps(files, directory);
  REQUIRE(!steps.empty());
  CHECK(steps.back() >= at_least);
  for (const std::int64_t step : steps) {
    const Checkpoint saved(directory + "/" + step_folder_name(step), files);
    saved.verify();
    CHECK((state_in(saved) == states.at(step)));
  }
  static_cast<void>(claim_folder(files, directory, steps.back()));
  for (const auto& entry : fs::directory_iterator(directory)) CHECK(entry.path().filename().string()[0] != '.');
  CHECK(saved_steps(files, directory) == steps);
  CHECK(read_bytes(directory + "/notes.txt") == "mine");
  CHECK(read_bytes(directory + "/step-3/a") == "b");
}

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

// --- loss of power ---

namespace {

struct LogEntry {
  enum class What : std::uint8_t { create, write, sync, make_folder, remove, rename, saved } what{};
  std::string path, to, data;
  std::int64_t step = 0;
};

// A machine's file system that keeps a log of what changed it, in order.
struct Recorder {
  std::mutex mutex;
  std::vector<LogEntry> log;
  std::map<int, std::string> open;

  FileSystem files() {
    FileSystem f = machine_file_system();
    const FileSystem real = f;
    f.create = [this, real](const std::string& p) {
      return noted(real.create(p), {LogEntry::What::create, p, "", "", 0}, true);
    };
    f.open_folder = [this, real](const std::string& p) {
      const std::scoped_lock lock(mutex);
      const int file = real.open_folder(p);
      if (file >= 0) open[file] = p;
      return file;
    };
    f.write = [this, real](int file, std::span<const std::byte> bytes) -> std::int64_t {
      const std::scoped_lock lock(mutex);
      const std::int64_t n = real.write(file, bytes);
      if (n > 0)
        log.push_back({LogEntry::What::write, open.at(file), "",
                       std::string(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n)), 0});
      return n;
    };
    f.sync = [this, real](int file) {
      const std::scoped_lock lock(mutex);
      log.push_back({LogEntry::What::sync, open.at(file), "", "", 0});
      return real.sync(file);
    };
    f.make_folder = [this, real](const std::string& p) {
      return noted(real.make_folder(p), {LogEntry::What::make_folder, p, "", "", 0});
    };
    f.remove_file = [this, real](const std::string& p) {
      return noted(real.remove_file(p), {LogEntry::What::remove, p, "", "", 0});
    };
    f.remove_folder = [this, real](const std::string& p) {
      return noted(real.remove_folder(p), {LogEntry::What::remove, p, "", "", 0});
    };
    f.rename = [this, real](const std::string& a, const std::string& b) {
      return noted(real.rename(a, b), {LogEntry::What::rename, a, b, "", 0});
    };
    return f;
  }
  int noted(int result, LogEntry entry, bool opens = false) {
    const std::scoped_lock lock(mutex);
    if (opens && result >= 0) open[result] = entry.path;
    if (result >= 0) log.push_back(std::move(entry));
    return result;
  }
};

// A disk behind a cache: what has been asked of it, and what a loss of power leaves. A file's bytes are safe when it
// was synced, a name when its folder was.
class Disk {
 public:
  explicit Disk(const std::string& folder) : root_(folder) {
    nodes_.emplace_back();
    nodes_[0].folder = true;
    for (const auto& e : fs::recursive_directory_iterator(folder)) {
      const std::size_t id = add(e.path().string(), e.is_directory());
      nodes_[id].data = e.is_directory() ? "" : read_bytes(e.path().string());
    }
    for (Node& n : nodes_) n.settle();
  }

  void apply(const LogEntry& e) {
    using What = LogEntry::What;
    switch (e.what) {
      case What::create: add(e.path, false); break;
      case What::make_folder: add(e.path, true); break;
      case What::write: nodes_[find(e.path)].data += e.data; break;
      case What::sync: nodes_[find(e.path)].settle(); break;
      case What::remove: change(e.path, {name_of(e.path), "", 0}); break;
      case What::rename: change(e.path, {name_of(e.path), name_of(e.to), find(e.path)}); break;
      case What::saved: break;
    }
  }

  enum class Names : std::uint8_t { all, safe, some };
  enum class Data : std::uint8_t { all, safe, half, zeros, any };
  // What is there after power comes back, written to `to`.
  void restore(const std::string& to, Names names, Data data, std::mt19937& random, std::size_t id = 0) const {
    fs::create_directories(to);
    for (const auto& [name, child] : entries(nodes_[id], names, random)) {
      if (nodes_[child].folder) restore(to + "/" + name, names, data, random, child);
      else write_bytes(to + "/" + name, bytes(nodes_[child], data, random));
    }
  }

 private:
  struct Change {
    std::string name, to;  // to empty: removed; name empty: added as `to`
    std::size_t node = 0;
  };
  struct Node {
    bool folder = false;
    std::string data, safe_data;
    std::map<std::string, std::size_t> names, safe_names;
    std::vector<Change> pending;
    void settle() {
      safe_data = data;
      safe_names = names;
      pending.clear();
    }
  };

  static std::string name_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }
  [[nodiscard]] std::size_t find(const std::string& path) const {
    std::size_t at = 0;
    if (path == root_) return at;
    for (const fs::path& part : fs::relative(path, root_)) at = nodes_[at].names.at(part.string());
    return at;
  }
  static void apply_to(std::map<std::string, std::size_t>& names, const Change& c) {
    if (!c.name.empty() && !names.contains(c.name)) return;
    if (!c.name.empty()) names.erase(c.name);
    if (!c.to.empty()) names[c.to] = c.node;
  }
  void change(const std::string& path, Change c) {
    Node& parent = nodes_[find(fs::path(path).parent_path().string())];
    apply_to(parent.names, c);
    parent.pending.push_back(std::move(c));
  }
  std::size_t add(const std::string& path, bool folder) {
    nodes_.emplace_back();
    nodes_.back().folder = folder;
    change(path, {"", name_of(path), nodes_.size() - 1});
    return nodes_.size() - 1;
  }
  static std::map<std::string, std::size_t> entries(const Node& n, Names which, std::mt19937& random) {
    if (which == Names::all) return n.names;
    std::map<std::string, std::size_t> names = n.safe_names;
    if (which == Names::some)
      for (const Change& c : n.pending)
        if (random() % 2 == 0) apply_to(names, c);
    return names;
  }
  static std::string bytes(const Node& n, Data which, std::mt19937& random) {
    if (which == Data::any) which = static_cast<Data>(random() % 4);
    const std::size_t safe = n.safe_data.size(), rest = n.data.size() - safe;
    switch (which) {
      case Data::all: return n.data;
      case Data::half: return n.data.substr(0, safe + rest / 2);
      case Data::zeros: return n.safe_data + std::string(rest, '\0');
      default: return n.safe_data;
    }
  }

  std::string root_;
  std::vector<Node> nodes_;
};

}  // namespace

TEST_CASE("a loss of power at any moment leaves a whole checkpoint, whatever was not yet on the disk") {
  const std::map<std::int64_t, State> states = undisturbed();
  const Folder folder;
  make_base(folder / "ckpt");
  Disk disk(folder / "ckpt");
  Recorder recorder;
  static_cast<void>(go_on(folder / "ckpt", recorder.files(), [&](std::int64_t step) {
    const std::scoped_lock lock(recorder.mutex);
    recorder.log.push_back({LogEntry::What::saved, "", "", "", step});
  }));
  REQUIRE(recorder.log.size() > 30);
  using Names = Disk::Names;
  using Data = Disk::Data;
  const std::pair<Names, Data> outcomes[] = {
      {Names::all, Data::all},  {Names::safe, Data::safe}, {Names::all, Data::safe},
      {Names::all, Data::half}, {Names::all, Data::zeros}, {Names::safe, Data::all},
      {Names::some, Data::any}, {Names::some, Data::any},  {Names::some, Data::any}};
  std::mt19937 random(3);
  std::int64_t at_least = kBefore;
  int points = 0;
  for (const LogEntry& e : recorder.log) {
    disk.apply(e);
    if (e.what == LogEntry::What::saved) at_least = e.step;
    for (const auto& [names, data] : outcomes) {
      CAPTURE(points);
      fs::remove_all(folder / "after");
      disk.restore(folder / "after", names, data, random);
      check_recovered(folder / "after", states, at_least);
      ++points;
    }
  }
  CHECK(at_least == kAfter);
  MESSAGE(points << " losses of power");
}

TEST_CASE("the loss of power would be noticed: without a sync it tears checkpoints") {
  const std::map<std::int64_t, State> states = undisturbed();
  const Folder folder;
  make_base(folder / "ckpt");
  Disk disk(folder / "ckpt");
  Recorder recorder;
  FileSystem files = recorder.files();
  files.sync = [](int) { return 0; };
  static_cast<void>(go_on(folder / "ckpt", files));
  std::mt19937 random(3);
  int torn = 0;
  for (const LogEntry& e : recorder.log) {
    disk.apply(e);
    fs::remove_all(folder / "after");
    disk.restore(folder / "after", Disk::Names::all, Disk::Data::safe, random);
    for (const std::int64_t step : saved_steps(machine_file_system(), folder / "after"))
      if (!refusal([&] {
             Checkpoint(folder / ("after/" + step_folder_name(step))).verify();
             return 0;
           }).empty())
        ++torn;
  }
  CHECK(torn > 0);
}

// --- disks that fill up or fail ---

namespace {

// What the run says, or "".
std::string failure(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace

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

// --- damaged, mixed up, missing ---

namespace {

struct Damage {
  std::string what;
  std::function<void(const std::string& step, const std::string& other)>
      harm;  // folders of the checkpoint and of another one
  std::vector<std::string> says;
};

void flip(const std::string& file, std::size_t at) {
  std::string bytes = read_bytes(file);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_bytes(file, bytes);
}

// The manifest with a change, its checksum right again.
void edit(const std::string& step, const std::function<void(Manifest&)>& change) {
  const std::string file = step + "/manifest.json";
  Manifest m = parse_manifest(read_bytes(file), file);
  change(m);
  write_bytes(file, to_json_text(m));
}
SavedTensor& tensor(Manifest& m, const std::string& name) {
  const auto found =
      std::find_if(m.tensors.begin(), m.tensors.end(), [&](const SavedTensor& t) { return t.name == name; });
  REQUIRE(found != m.tensors.end());
  return *found;
}

}  // namespace

TEST_CASE("damaged, truncated, mixed up and missing files are refused by name; nothing is run and nothing is changed") {
  const ModelGraph model = small_model();
  const ShardingPlan plan = small_plan();
  const Folder folder;
  make_base(folder / "base");
  static_cast<void>(go_on(folder / "base", machine_file_system()));  // steps 3 and 4
  const ModelGraph other_model = chain({3, 6, 6});
  const ShardingPlan other_plan = make_plan(other_model, {.shard = 2, .micro_batches = {2}, .seq_len = 3});
  static_cast<void>(train(other_model, other_plan, 4, saving(other_model, other_plan, folder / "other")));
  const std::string rank0 = "/rank-00000.safetensors", rank1 = "/rank-00001.safetensors", manifest = "/manifest.json";
  const auto to = [](std::size_t size, const std::string& file) { fs::resize_file(file, size); };
  const Damage cases[] = {
      {"a byte of data",
       [&](auto& s, auto&) { flip(s + rank1, read_bytes(s + rank1).size() - 1); },
       {rank1, "tensor '", "do not match their checksum"}},
      {"a byte of the first tensor",
       [&](auto& s, auto&) {
         flip(s + rank0, static_cast<std::size_t>(Checkpoint(s).manifest().files[0].header_bytes));
       },
       {rank0, "tensor '", "do not match"}},
      {"a byte of a header", [&](auto& s, auto&) { flip(s + rank0, 20); }, {rank0, "header differs"}},
      {"cut by one byte",
       [&](auto& s, auto&) { to(fs::file_size(s + rank1) - 1, s + rank1); },
       {rank1, "it is truncated"}},
      {"cut in its header", [&](auto& s, auto&) { to(100, s + rank1); }, {rank1}},
      {"empty", [&](auto& s, auto&) { to(0, s + rank1); }, {rank1}},
      {"longer", [&](auto& s, auto&) { write_bytes(s + rank1, read_bytes(s + rank1) + "x"); }, {rank1, "where"}},
      {"missing", [&](auto& s, auto&) { fs::remove(s + rank1); }, {rank1, "is missing"}},
      {"two ranks exchanged",
       [&](auto& s, auto&) {
         fs::rename(s + rank0, s + "/x");
         fs::rename(s + rank1, s + rank0);
         fs::rename(s + "/x", s + rank1);
       },
       {rank0, "model mlp, step 4, rank 1, not of mlp, step 4, rank 0"}},
      {"of another step",
       [&](auto& s, auto&) {
         fs::copy_file(folder / "ckpt/step-00000003/rank-00000.safetensors", s + rank0,
                       fs::copy_options::overwrite_existing);
       },
       {rank0, "step 3, rank 0, not of mlp, step 4"}},
      {"of another model",
       [&](auto& s, auto& o) { fs::copy_file(o + rank1, s + rank1, fs::copy_options::overwrite_existing); },
       {rank1, "is not the file"}},
      {"manifest of another step",
       [&](auto& s, auto&) {
         fs::copy_file(folder / "ckpt/step-00000003/manifest.json", s + manifest, fs::copy_options::overwrite_existing);
       },
       {manifest, "is of step 3"}},
      {"all of another model",
       [&](auto& s, auto& o) {
         fs::remove_all(s);
         fs::copy(o, s);
       },
       {manifest, "tensor '"}},
      {"a link",
       [&](auto& s, auto& o) {
         fs::remove(s + rank0);
         fs::create_symlink(o + rank0, s + rank0);
       },
       {rank0, "is not a file (links are not followed)"}},
      {"a folder",
       [&](auto& s, auto&) {
         fs::remove(s + rank0);
         fs::create_directory(s + rank0);
       },
       {rank0, "is not a file"}},
      {"manifest cut", [&](auto& s, auto&) { to(500, s + manifest); }, {manifest}},
      {"manifest changed",
       [&](auto& s, auto&) {
         std::string text = read_bytes(s + manifest);
         text.replace(text.find("\"sequences\": "), 13, "\"sequences\": 1");
         write_bytes(s + manifest, text);
       },
       {manifest, "does not match its own checksum"}},
      {"boxes overlap",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { tensor(m, "embed.weight").boxes[1].box.offsets[0] -= 1; }); },
       {manifest, "embed.weight", "overlap"}},
      {"a hole",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { tensor(m, "embed.weight").boxes.pop_back(); }); },
       {manifest, "embed.weight", "hold 9 of 18 elements"}},
      {"a box outside",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { tensor(m, "embed.weight").boxes[1].box.offsets[0] += 1; }); },
       {manifest, "embed.weight", "not inside"}},
      {"sizes that overflow",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           m.tensors[0].shape = {std::int64_t{1} << 53, std::int64_t{1} << 53};
           m.tensors[0].boxes[0].box.sizes = m.tensors[0].shape;
         });
       },
       {manifest, "tensors[0]"}},
      {"a box beyond its file",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].boxes[0].begin = m.files[0].bytes; }); },
       {manifest, "tensors[0]"}},
      {"bytes used twice",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           tensor(m, "optimizer.exp_avg.embed.weight").boxes[0].begin = tensor(m, "embed.weight").boxes[0].begin;
         });
       },
       {manifest, "share bytes of rank-00000"}},
      {"a tensor twice",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors.push_back(m.tensors[0]); }); },
       {manifest, "listed twice"}},
      {"a file elsewhere",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.files[0].name = "../../x"; }); },
       {manifest, "files[0].name"}},
      {"a file that is not there",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].boxes[0].file = 2; }); },
       {manifest, "tensors[0]"}},
      {"too few checksums",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].boxes[0].checksums.pop_back(); }); },
       {manifest, "checksums, where"}},
      {"another dtype",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.tensors[0].dtype = DType::f64; }); },
       {manifest, "tensors[0]"}},
      {"another shape",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           SavedTensor& t = tensor(m, "layers.0.0.weight");
           t.shape = {3, 4};
           for (std::size_t i = 0; i < 2; ++i) t.boxes[i].box = i == 0 ? Box{{0, 0}, {3, 2}} : Box{{0, 2}, {3, 2}};
         });
       },
       {manifest, "layers.0.0.weight", "has shape [3, 4], the model's is [4, 3]"}},
      {"no moments",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) {
           std::erase_if(m.tensors, [](const SavedTensor& t) { return t.name == "optimizer.exp_avg.layers.0.0.bias"; });
         });
       },
       {manifest, "optimizer.exp_avg.layers.0.0.bias", "is missing"}},
      {"one tensor too many",
       [&](auto& s, auto&) {
         edit(s, [](Manifest& m) { tensor(m, "optimizer.exp_avg.layers.0.0.bias").name = "other"; });
       },
       {manifest, "optimizer.exp_avg.layers.0.0.bias", "is missing"}},
      {"another seed",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.seed = 5; }); },
       {manifest, "seed 5", "--seed 5"}},
      {"another optimizer",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.optimizer = OptimizerKind::sgd; }); },
       {manifest, "the plan trains with adamw, which keeps other states"}},
      {"another sequence length",
       [&](auto& s, auto&) { edit(s, [](Manifest& m) { m.seq_len = 9; }); },
       {manifest, "sequences of 9 tokens"}},
  };
  for (const Damage& d : cases) {
    CAPTURE(d.what);
    fs::remove_all(folder / "ckpt");
    fs::copy(folder / "base", folder / "ckpt", fs::copy_options::recursive);
    d.harm(folder / "ckpt/step-00000004", folder / "other/step-00000004");
    const std::map<std::string, std::string> before = files_below(folder / "ckpt");
    std::atomic<int> steps{0};
    const std::string said = failure([&] {
      RunOptions options = resuming(model, plan, folder / "ckpt");
      options.after_step = [&](const RankState&) { ++steps; };
      options.steps = 1;
      static_cast<void>(execute(model, plan, options));
    });
    CAPTURE(said);
    CHECK(holds(said, folder / "ckpt/step-00000004"));
    for (const std::string& part : d.says) CHECK(holds(said, part));
    CHECK(steps == 0);
    CHECK((files_below(folder / "ckpt") == before));
    // The one before it is as good as ever.
    CHECK(failure([&] { Checkpoint(folder / "ckpt/step-00000003").verify(); }).empty());
  }
}

TEST_CASE("SGD with momentum does not go on from SGD without it, nor the other way round") {
  const ModelGraph model = small_model();
  for (const double saved : {0.0, 0.9}) {
    const Folder folder;
    ShardingPlan plan = small_plan(), other = plan;
    plan.optimizer.kind = other.optimizer.kind = OptimizerKind::sgd;
    plan.optimizer.momentum = saved, other.optimizer.momentum = saved == 0 ? 0.9 : 0.0;
    static_cast<void>(train(model, plan, 2, saving(model, plan, folder / "ckpt")));
    CHECK(refusal([&] { return resuming(model, plan, folder / "ckpt"); }).empty());
    plan.optimizer.momentum = saved == 0 ? 0.0 : 0.5;  // another momentum keeps the same states
    CHECK(refusal([&] { return resuming(model, plan, folder / "ckpt"); }).empty());
    CHECK(holds(refusal([&] { return resuming(model, other, folder / "ckpt"); }),
                saved == 0 ? "was saved by sgd without momentum, the plan trains with sgd with momentum"
                           : "was saved by sgd with momentum, the plan trains with sgd without momentum"));
  }
}

TEST_CASE("a plan that cannot go on from a checkpoint is refused") {
  const ModelGraph model = small_model();
  const Folder folder;
  make_base(folder / "ckpt");
  const auto with = [&](auto change) {
    ShardingPlan plan = small_plan();
    change(plan);
    return refusal([&] { return resuming(model, plan, folder / "ckpt"); });
  };
  CHECK(with([](ShardingPlan&) {}).empty());
  CHECK(with([](ShardingPlan& p) { p.optimizer.lr = 1; }).empty());
  CHECK(holds(with([](ShardingPlan& p) { p.master_dtype = DType::f64; }), "is fp32, the plan's master dtype is fp64"));
  CHECK(holds(with([](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::sgd; }), "was saved by adamw"));
  CHECK(holds(with([](ShardingPlan& p) { p.seed = 9; }), "seed 1234, the plan's is 9"));
  CHECK(holds(refusal([&] {
                ModelGraph wider = model;
                wider.ops[1].shape.in += 0;
                wider.modules[1].class_name = "Other";
                return resuming(wider, small_plan(), folder / "ckpt");
              }),
              "is of another model"));
  SaveOptions save;
  save.directory = folder / "x";
  ShardingPlan partly = small_plan();
  partly.ignored = {"lm_head"};
  CHECK(
      holds(refusal([&] { return checkpoint_saver(model, partly, save); }), "ignored parameters are not written yet"));
}
