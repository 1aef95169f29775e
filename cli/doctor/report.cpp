#include "cli/doctor/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/terminal/terminal.h"
#include "models/input/suggest.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

std::string cores_text(const HostFindings& h) {
  std::string text = fmt::format("{}, {} of them for this process", h.cores, h.usable_cores);
  if (h.limits.group_cores) text += fmt::format("; quota of the control group: {:.3g}", *h.limits.group_cores);
  return text;
}

std::string memory_text_of(const HostFindings& h) {
  std::string text = human(h.limits.memory);
  if (h.limits.available) text += ", " + human(*h.limits.available) + " of it available";
  text += h.limits.group_memory ? "; limit of the control group: " + human(*h.limits.group_memory)
                                : "; no limit of a control group";
  if (h.address_space)
    text += fmt::format("; this process may map {} more (ulimit -v)", human(Bytes(*h.address_space)));
  return text;
}

std::string kernels_text(const HostFindings& h) {
  if (h.instructions.empty()) return "none: " + h.why_no_kernels;
  return fmt::format("{} (of {}); matrix products: {}", h.instructions, join(h.all_instructions), h.matmul_library);
}

std::string driver_text(const GpuFindings& g) {
  if (!g.trouble.empty()) return "unknown: " + g.trouble;
  std::string text;
  if (g.driver.cuda) text = fmt::format("CUDA {}.{}", g.driver.cuda->major, g.driver.cuda->minor);
  if (!g.hardware.kernel_module.empty())
    text += fmt::format("{}kernel module {}", text.empty() ? "" : ", ", g.hardware.kernel_module);
  if (text.empty()) text = "none";
  return g.driver.why.empty() ? text : text + ": " + g.driver.why;
}

std::string gpu_text(const cuda::GpuFacts& g) {
  return fmt::format("{}, {}, {} multiprocessors, compute capability {}.{}", g.name, human(g.memory), g.multiprocessors,
                     g.compute_capability / 10, g.compute_capability % 10);
}

std::string torch_text(const PythonFindings& p) {
  if (p.torch.empty()) return "none: " + p.trouble;
  return fmt::format("{} ({}{})", p.torch, p.torch_cuda.empty() ? "for processors" : "for CUDA " + p.torch_cuda,
                     p.fully_shard ? "" : ", without fully_shard");
}

std::string costs_text(const CostsFindings& c) {
  if (c.path.empty()) return "none in this folder";
  if (!c.trouble.empty()) return "cannot be used: " + c.trouble;
  return fmt::format("{}: {}{}", c.path, c.source, c.of_this_host ? "" : " (not of this machine as it is now)");
}

Rows machine_rows(const Examination& e) {
  Rows rows = {{"processor", e.host.processor},
               {"cores", cores_text(e.host)},
               {"memory", memory_text_of(e.host)},
               {"kernels", kernels_text(e.host)}};
  if (e.gpus.hardware.gpus > 0) rows.push_back({"NVIDIA GPUs", fmt::format("{} on the PCI bus", e.gpus.hardware.gpus)});
  rows.push_back({"NVIDIA driver", driver_text(e.gpus)});
  for (std::size_t i = 0; i < e.gpus.driver.gpus.size(); ++i)
    rows.push_back({fmt::format("GPU {}", i), gpu_text(e.gpus.driver.gpus[i])});
  for (const cuda::FoundLibrary& l : e.gpus.libraries)
    rows.push_back({l.name, l.path.empty() ? "none" : fmt::format("{} ({})", cuda::text(l.version), l.path)});
  rows.push_back({"MPI launcher", e.launcher.path.empty()
                                      ? "no mpirun, mpiexec or srun on PATH"
                                      : fmt::format("{} ({})", e.launcher.version, e.launcher.path)});
  rows.push_back(
      {"Python", e.python.version.empty()
                     ? (e.python.path.empty() ? "none: " : "none: " + e.python.path + ": ") + e.python.trouble
                     : fmt::format("{} ({})", e.python.version, e.python.path)});
  if (!e.python.version.empty()) {
    rows.push_back({"PyTorch", torch_text(e.python)});
    if (!e.python.transformers.empty()) rows.push_back({"transformers", e.python.transformers});
    if (!e.python.accelerate.empty()) rows.push_back({"accelerate", e.python.accelerate});
  }
  rows.push_back({"costs", costs_text(e.costs)});
  return rows;
}

Json version_json(const cuda::Version& v) { return cuda::text(v); }
Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json host_json(const HostFindings& h) {
  return {{"processor", h.processor},
          {"cores", h.cores},
          {"usable_cores", h.usable_cores},
          {"quota_cores", h.limits.group_cores ? Json(*h.limits.group_cores) : Json()},
          {"memory_bytes", h.limits.memory.count()},
          {"available_bytes", h.limits.available ? Json(h.limits.available->count()) : Json()},
          {"memory_limit_bytes", h.limits.group_memory ? Json(h.limits.group_memory->count()) : Json()},
          {"address_space_left_bytes", h.address_space ? Json(*h.address_space) : Json()},
          {"instructions", text_or_null(h.instructions)},
          {"all_instructions", h.all_instructions},
          {"matmul_library", h.matmul_library}};
}

Json nvidia_json(const GpuFindings& g) {
  Json gpus = Json::array(), libraries = Json::array();
  for (const cuda::GpuFacts& f : g.driver.gpus)
    gpus.push_back(
        {{"name", f.name},
         {"memory_bytes", f.memory.count()},
         {"l2_bytes", f.l2.count()},
         {"multiprocessors", f.multiprocessors},
         {"compute_capability", fmt::format("{}.{}", f.compute_capability / 10, f.compute_capability % 10)}});
  for (const cuda::FoundLibrary& l : g.libraries)
    if (!l.path.empty())
      libraries.push_back({{"name", l.name}, {"version", version_json(l.version)}, {"path", l.path}});
  return {{"gpus_on_bus", g.hardware.gpus},
          {"kernel_module", text_or_null(g.hardware.kernel_module)},
          {"driver_cuda", g.driver.cuda ? version_json(*g.driver.cuda) : Json()},
          {"why", text_or_null(g.trouble.empty() ? g.driver.why : g.trouble)},
          {"gpus", gpus},
          {"libraries", libraries}};
}

}  // namespace

std::string examination_verdict(const Examination& e) {
  std::vector<std::string> works, fails;
  for (const BackendFindings& b : e.backends) (b.works ? works : fails).push_back(b.name);
  if (works.empty()) return "`run` works here with no backend.\n";
  return fmt::format("`run` works here with: {}.{}\n", join(works),
                     fails.empty() ? "" : " It does not with: " + join(fails) + ".");
}

std::string examination_tables(const Examination& e) {
  std::string text = fitting_table({"this machine", "found"}, machine_rows(e));
  Rows backends;
  for (const BackendFindings& b : e.backends)
    backends.push_back({b.name, b.works ? "yes" : "no", b.said, b.works ? b.launch : ""});
  text += "\n" + fitting_table({"backend", "works", "what ran, or why not", "started with"}, backends);
  Rows missing;
  for (const Missing& m : e.missing) missing.push_back({m.what, m.gives, m.remedy});
  if (!missing.empty()) text += "\n" + fitting_table({"missing", "it would give", "how"}, missing);
  return text;
}

std::string examination_json(const Examination& e) {
  Json backends = Json::array(), missing = Json::array();
  for (const BackendFindings& b : e.backends)
    backends.push_back({{"name", b.name},
                        {"works", b.works},
                        {"said", b.said},
                        {"remedy", text_or_null(b.remedy)},
                        {"started_with", text_or_null(b.launch)}});
  for (const Missing& m : e.missing) missing.push_back({{"what", m.what}, {"gives", m.gives}, {"remedy", m.remedy}});
  const PythonFindings& p = e.python;
  const Json document = {
      {"schema", "fsdp-plan/doctor/1"},
      {"can_run", e.can_run()},
      {"host", host_json(e.host)},
      {"nvidia", nvidia_json(e.gpus)},
      {"mpi_launcher", {{"path", text_or_null(e.launcher.path)}, {"version", text_or_null(e.launcher.version)}}},
      {"python",
       {{"path", text_or_null(p.path)},
        {"version", text_or_null(p.version)},
        {"torch", text_or_null(p.torch)},
        {"torch_cuda", text_or_null(p.torch_cuda)},
        {"fully_shard", p.fully_shard},
        {"transformers", text_or_null(p.transformers)},
        {"accelerate", text_or_null(p.accelerate)},
        {"why", text_or_null(p.trouble)}}},
      {"costs",
       {{"path", text_or_null(e.costs.path)},
        {"source", text_or_null(e.costs.source)},
        {"of_this_machine", e.costs.of_this_host},
        {"why", text_or_null(e.costs.trouble)}}},
      {"backends", backends},
      {"missing", missing}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp::cli
