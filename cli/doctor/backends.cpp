#include "cli/doctor/backends.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/doctor/child.h"
#include "models/catalog.h"
#include "models/input/suggest.h"
#include "planner/plan/naive_plan.h"

namespace fsdp::cli {
namespace {

using Arguments = std::vector<std::string>;

constexpr const char* kModel = "tiny-llama";
constexpr std::int64_t kSeqLen = 16;
constexpr const char* kMpiPackages = "install an MPI (Debian, Ubuntu: openmpi-bin), or load its module";

// Plans of one and two ranks, in a folder of their own while they are needed.
class Plans {
 public:
  Plans() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "fsdp-plan-doctor-XXXXXX").string();
    if (error || ::mkdtemp(name.data()) == nullptr) return;
    folder_ = name;
    const ModelGraph model = load_model(kModel, kSeqLen);
    for (const std::int64_t ranks : {1, 2})
      std::ofstream(of(ranks)) << to_json_text(naive_plan(model, {.ranks = ranks, .seq_len = kSeqLen}));
  }
  ~Plans() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;
  [[nodiscard]] bool written() const {
    std::error_code error;
    return !folder_.empty() && std::filesystem::file_size(of(2), error) > 0 && !error;
  }
  [[nodiscard]] std::string of(std::int64_t ranks) const { return fmt::format("{}/plan-{}.json", folder_, ranks); }

 private:
  std::string folder_;
};

struct Trial {
  std::string backend, what;  // "2 threads"
  std::int64_t ranks = 1;
  Arguments launch;  // before the program
};

// What the program said of its failure: its own sentence, else the first line that says something.
std::string complaint_of(const ChildEnd& end) {
  constexpr std::string_view kOurs = "fsdp-plan: ", kFlag = "--backend: ";
  std::istringstream lines(end.err);
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kOurs)) {
      line.erase(0, kOurs.size());
      return line.starts_with(kFlag) ? line.substr(kFlag.size()) : line;
    }
    if (first.empty() && line.find_first_not_of("-=* \t\r") != std::string::npos) first = line;
  }
  return first.empty() ? end.how() : end.how() + ": " + printable(first);
}

// "problem; remedy" in two; a sentence without a remedy of its own gets `otherwise`.
void split(const std::string& sentence, const std::string& otherwise, BackendFindings& f) {
  const auto at = sentence.find("; ");
  f.said = sentence.substr(0, at);
  f.remedy = at == std::string::npos ? otherwise : sentence.substr(at + 2);
}

// Did the ranks really run? Their measurement says so; an exit code alone does not.
bool measured(const std::string& text, std::int64_t ranks, std::string& why) {
  const auto document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object() || !document.contains("losses") || !document.contains("ranks")) {
    why = "the run ended well, but printed no measurement";
    return false;
  }
  if (document["ranks"].size() != static_cast<std::size_t>(ranks)) {
    why = fmt::format("{} of {} ranks were measured", document["ranks"].size(), ranks);
    return false;
  }
  for (const auto& loss : document["losses"])
    if (!loss.is_number() || !std::isfinite(loss.get<double>())) {
      why = "the loss was no number";
      return false;
    }
  return document["losses"].size() == 2;
}

BackendFindings attempt(const std::string& program, const Plans& plans, const Trial& t, double seconds) {
  BackendFindings f;
  const std::string by_hand = "`fsdp-plan run --backend " + t.backend + "`";
  f.name = t.backend;
  f.launch = join(t.launch, " ");
  if (!plans.written()) {
    f.said = "not tried: no folder for temporary files";
    f.remedy = "name a folder that can be written with TMPDIR";
    return f;
  }
  Arguments words = t.launch;
  for (const std::string& word :
       {program, std::string("run"), std::string("--plan"), plans.of(t.ranks), std::string("--model"),
        std::string(kModel), std::string("--backend"), t.backend, std::string("--steps"), std::string("1"),
        std::string("--warmup"), std::string("1"), std::string("--json")})
    words.push_back(word);
  Child child(words);
  const ChildEnd end = child.finish(seconds);
  if (end.succeeded() && measured(end.out, t.ranks, f.said)) {
    f.works = true;
    f.said = fmt::format("{}: 2 steps of {} in {:.2g} s", t.what, kModel, end.seconds);
  } else if (!end.in_time) {
    f.said = fmt::format("{}: {}", t.what, end.how());
    f.remedy = "on a slow machine give a longer --time-limit; else see what hangs with " + by_hand;
  } else if (f.said.empty()) {
    split(complaint_of(end), "see what it says with " + by_hand, f);
  } else {  // what ended well was no run of two ranks
    f.remedy = t.launch.empty() ? "see what it says with " + by_hand
                                : "put the launcher of the MPI that this program was built with first on PATH";
  }
  return f;
}

bool says(const BackendFindings& f, const char* word) { return f.said.find(word) != std::string::npos; }

BackendFindings try_mpi(const std::string& program, const Plans& plans, const LauncherFindings& launcher,
                        double seconds) {
  if (launcher.path.empty()) {
    BackendFindings f = attempt(program, plans, {"mpi", "1 process", 1, {}}, seconds);
    if (!f.works && (says(f, "is not built in") || says(f, "not tried"))) return f;
    f.works = false;
    f.said = "no mpirun, mpiexec or srun on PATH, and one process alone is no use";
    f.remedy = path_is_empty() ? "set PATH, which is empty, to the folders of programs" : kMpiPackages;
    return f;
  }
  const bool open_mpi =
      launcher.version.find("Open MPI") != std::string::npos || launcher.version.find("OpenRTE") != std::string::npos;
  Arguments launch = {launcher.path};
  if (open_mpi && ::geteuid() == 0) launch.emplace_back("--allow-run-as-root");
  if (open_mpi) launch.insert(launch.end(), {"--bind-to", "none"});
  const auto with_ranks = [](Arguments words) {
    words.insert(words.end(), {"-n", "2"});
    return words;
  };
  BackendFindings f = attempt(program, plans, {"mpi", "2 processes", 2, with_ranks(launch)}, seconds);
  if (f.works || !open_mpi || !says(f, "slots")) return f;
  launch.emplace_back("--oversubscribe");  // it counts whole cores, of which there may be one
  return attempt(program, plans, {"mpi", "2 processes", 2, with_ranks(launch)}, seconds);
}

BackendFindings try_cuda(const std::string& program, const Plans& plans, int gpus, double seconds) {
  if (gpus < 2) return attempt(program, plans, {"cuda", "1 GPU", 1, {}}, seconds);
  BackendFindings two = attempt(program, plans, {"cuda", "2 GPUs", 2, {}}, seconds);
  if (two.works) return two;
  BackendFindings one = attempt(program, plans, {"cuda", "1 GPU", 1, {}}, seconds);
  if (!one.works) return two;
  one.said += "; 2 GPUs: " + two.said;
  one.remedy = two.remedy;
  return one;
}

}  // namespace

LauncherFindings find_launcher(double seconds) {
  Arguments names = {"mpirun", "mpiexec"};
  if (std::getenv("SLURM_JOB_ID") != nullptr) names.emplace_back("srun");  // elsewhere it waits for a job
  for (const std::string& name : names) {
    const auto path = find_program(name);
    if (!path) continue;
    Child child({*path, "--version"});
    const ChildEnd end = child.finish(seconds);
    std::istringstream lines(end.out);
    std::string first, version;
    for (std::string line; std::getline(lines, line);) {
      if (first.empty()) first = line;
      if (line.find("Version:") != std::string::npos) version = line;  // MPICH's second line
    }
    const auto word = version.find_first_not_of(' ');
    return {*path, end.succeeded() ? printable(word == std::string::npos ? first : first + " " + version.substr(word))
                                   : "it " + end.how() + " when asked for its version"};
  }
  return {};
}

std::vector<BackendFindings> try_backends(const std::string& program, const LauncherFindings& launcher, int gpus,
                                          double seconds) {
  const Plans plans;
  return {attempt(program, plans, {"host", "2 threads", 2, {}}, seconds), try_mpi(program, plans, launcher, seconds),
          try_cuda(program, plans, gpus, seconds)};
}

}  // namespace fsdp::cli
