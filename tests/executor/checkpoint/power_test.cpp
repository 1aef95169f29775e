// A machine that loses power while checkpoints are saved: what a sync had put on the disk is there, and whole.
#include <mutex>
#include <random>

#include "tests/executor/checkpoint/saved_run.h"

using namespace fsdp;
using namespace fsdp::testing;

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
