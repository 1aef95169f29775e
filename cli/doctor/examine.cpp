#include "cli/doctor/examine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <variant>

#include "cli/doctor/backends.h"
#include "cli/doctor/child.h"
#include "cli/doctor/gpus.h"
#include "cli/field_flags.h"
#include "cli/files.h"
#include "cli/options.h"
#include "executor/kernels/host_kernel_set.h"
#include "executor/ranks/processor.h"
#include "executor/training/machine.h"
#include "models/catalog.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "planner/costs/fitted.h"

namespace fsdp::cli {
namespace {

constexpr const char* kCostsFile = "costs.json";

// One JSON object a line, as soon as it is known: what hangs hides nothing that came before.
constexpr const char* kPython = R"(
import json, sys
def say(**known): print(json.dumps(known), flush=True)
say(python="%d.%d.%d" % sys.version_info[:3])
try:
    from importlib.metadata import version
    for name in ("transformers", "accelerate"):
        try: say(**{name: version(name)})
        except Exception: pass
except ImportError: pass
try:
    import torch
    say(torch=str(torch.__version__), torch_cuda=str(torch.version.cuda or ""))
except BaseException as error:
    say(trouble=type(error).__name__ + ": " + str(error))
else:
    try:
        from torch.distributed.fsdp import fully_shard
        say(fully_shard=True)
    except BaseException: pass
)";

HostFindings host_findings() {
  HostFindings f;
  f.processor = printable(host::processor_name());
  f.cores = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  f.usable_cores = usable_cores();
  f.limits = host_limits();
  f.address_space = address_space_left();
  f.matmul_library = host_matmul_library();
  for (const HostKernelSet* set : host_kernel_sets()) f.all_instructions.emplace_back(set->instructions());
  try {
    f.instructions = host_kernel_set().instructions();
  } catch (const InputError& e) {  // FSDP_PLAN_INSTRUCTIONS names another
    f.why_no_kernels = e.what();
  }
  return f;
}

std::optional<std::string> named_python() {
  const char* named = std::getenv("FSDP_PLAN_PYTHON");
  return named != nullptr && *named != '\0' ? std::optional<std::string>(named) : std::nullopt;
}

std::string why_no_python() {
  if (const auto named = named_python())
    return fmt::format("FSDP_PLAN_PYTHON names {}, which is no program{}", printable(*named),
                       named->find('/') == std::string::npos ? " on PATH" : "");
  return std::string("no python3 on PATH") + (path_is_empty() ? ", which is empty" : "");
}

// What it said of its end: the first line that names an error, or else the first.
std::string last_words(const ChildEnd& end) {
  std::istringstream lines(end.err);
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("rror") != std::string::npos) return ": " + printable(line);
    if (first.empty() && !line.empty()) first = ": " + printable(line);
  }
  return first;
}

// How to have a Python with PyTorch.
std::string python_remedy(const PythonFindings& p) {
  const std::string or_other = ", or name a Python that has PyTorch with FSDP_PLAN_PYTHON";
  if (p.path.empty()) {
    if (named_python()) return "correct FSDP_PLAN_PYTHON, or unset it for the python3 on PATH";
    return (path_is_empty() ? "set PATH" : "install Python 3 and PyTorch") + or_other;
  }
  const std::string python = shell_word(p.path);
  if (p.version.empty()) return fmt::format("see what `{} -c 1` says{}", python, or_other);
  if (p.trouble.starts_with("ModuleNotFoundError: No module named 'torch'"))
    return fmt::format("`{} -m pip install torch`{}", python, or_other);
  return fmt::format("see what `{} -c 'import torch'` says, install it again{}", python, or_other);
}

PythonFindings python_findings(const std::string& path, const ChildEnd& end) {
  PythonFindings f;
  f.path = path;
  std::istringstream lines(end.out);
  for (std::string line; std::getline(lines, line);) {
    const auto known = nlohmann::json::parse(line, nullptr, false);
    if (!known.is_object()) continue;  // what packages print when they are imported
    for (const auto& [key, field] : {std::pair{"python", &f.version},
                                     {"torch", &f.torch},
                                     {"torch_cuda", &f.torch_cuda},
                                     {"transformers", &f.transformers},
                                     {"accelerate", &f.accelerate},
                                     {"trouble", &f.trouble}})
      if (known.contains(key) && known[key].is_string()) *field = printable(known[key].get<std::string>());
    if (known.contains("fully_shard")) f.fully_shard = true;
  }
  if (!end.succeeded() && f.torch.empty())
    f.trouble = (f.version.empty() ? "it " : "importing torch: it ") + end.how() + last_words(end);
  else if (f.version.empty()) f.trouble = "it is no Python 3";
  return f;
}

CostsFindings costs_findings(const std::optional<std::string>& named, const HostFindings& host) {
  CostsFindings f;
  std::error_code error;
  if (!named && !std::filesystem::exists(kCostsFile, error)) return f;
  f.path = named.value_or(kCostsFile);
  try {
    const auto read = parse_any_costs(read_file(f.path), f.path);
    if (const auto* fitted = std::get_if<FittedCosts>(&read)) {
      f.source = fitted->source;
      return f;
    }
    const auto& costs = std::get<Costs>(read);
    f.source = costs.source;
    f.of_this_host = costs.platform == host_cluster(1).name &&
                     costs.source.find(host::processor_name()) != std::string::npos &&
                     (host.instructions.empty() || costs.source.find(host.instructions) != std::string::npos);
  } catch (const InputError& e) {
    if (named) throw;
    f.trouble = e.what();
  }
  return f;
}

bool lacks(const GpuFindings& gpus, const std::string& library) {
  for (const cuda::FoundLibrary& l : gpus.libraries)
    if (l.name == library) return l.path.empty();
  return false;  // not known
}

void add_missing_of_gpus(const GpuFindings& gpus, std::vector<Missing>& missing) {
  if (gpus.driver.gpus.empty() && (gpus.hardware.gpus > 0 || !gpus.hardware.kernel_module.empty()))
    missing.push_back({"a driver that answers", "the NVIDIA GPUs of this machine",
                       gpus.hardware.kernel_module.empty()
                           ? "install the NVIDIA driver"
                           : "see nvidia-smi and dmesg; in a container start it with its GPUs (--gpus all)"});
  if (gpus.driver.gpus.empty()) return;
  if (lacks(gpus, "cuBLASLt"))
    missing.push_back({"cuBLASLt", "matrix products on GPUs, without which nothing trains",
                       "install the CUDA toolkit or the Python package nvidia-cublas-cu12"});
  if (gpus.driver.gpus.size() > 1 && lacks(gpus, "NCCL"))
    missing.push_back({"NCCL", "ranks on several GPUs", "install libnccl2 or the Python package nvidia-nccl-cu12"});
}

// What the backend says of a driver is for machines with a GPU.
void leave_out_driver(Examination& e) {
  const GpuFindings& g = e.gpus;
  if (g.hardware.gpus > 0 || !g.hardware.kernel_module.empty() || g.driver.cuda || !g.trouble.empty()) return;
  for (BackendFindings& b : e.backends)
    if (b.name == "cuda" && b.said.find("no NVIDIA GPU") != std::string::npos) {
      b.said = "no NVIDIA GPU here";
      b.remedy = "use a machine that has one";
    }
}

std::vector<Missing> missing_of(const Examination& e) {
  std::vector<Missing> missing;
  for (const BackendFindings& b : e.backends) {
    if (b.remedy.empty()) continue;
    const char* gives = b.name == "host"  ? "ranks as threads, and calibration of this machine"
                        : b.name == "mpi" ? "ranks as processes, on one machine or several"
                        : b.works         ? "ranks on several GPUs"
                                          : "training on NVIDIA GPUs, and their calibration";
    missing.push_back({"backend " + b.name, gives, b.remedy});
  }
  add_missing_of_gpus(e.gpus, missing);
  if (e.python.torch.empty())
    missing.push_back({"PyTorch", "scripts of `show plan --emit pytorch` run here", python_remedy(e.python)});
  else if (!e.python.fully_shard)
    missing.push_back(
        {"fully_shard", "scripts of `show plan --emit pytorch` run here", "install PyTorch 2.6 or later"});
  if (!e.costs.of_this_host)
    missing.push_back({"costs of this machine", "predictions of runs on it (`--cluster host`)",
                       "`fsdp-plan calibrate --backend host --ranks 2 -o costs.json`"});
  if (e.host.matmul_library.starts_with("Eigen"))
    missing.push_back({"OpenBLAS", "faster matrix products on processors",
                       "install libopenblas-dev (Debian, Ubuntu) and build again"});
  return missing;
}

std::string own_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw MachineError("/proc/self/exe: this program does not find itself: " + error.message());
  return path.string();
}

}  // namespace

Examination examine(const std::optional<std::string>& costs, double seconds) {
  const SignalsWait signals;
  Examination e;
  e.host = host_findings();
  e.costs = costs_findings(costs, e.host);
  const std::string program = own_path();
  const auto python = find_program(named_python().value_or("python3"));
  std::optional<Child> asked_python;
  if (python) asked_python.emplace(std::vector<std::string>{*python, "-c", kPython});  // while the rest is looked at
  Child asked_gpus({program, "doctor", kAskGpus});
  e.gpus = gpu_findings(asked_gpus.finish(seconds));
  e.launcher = find_launcher(seconds);
  e.backends = try_backends(program, e.launcher, static_cast<int>(e.gpus.driver.gpus.size()), seconds);
  if (python) e.python = python_findings(*python, asked_python->finish(seconds));
  else e.python.trouble = why_no_python();
  leave_out_driver(e);
  e.missing = missing_of(e);
  return e;
}

}  // namespace fsdp::cli
