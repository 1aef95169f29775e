#include "cli/doctor/gpus.h"

#include <nlohmann/json.hpp>

#include "models/input/suggest.h"

namespace fsdp::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(cuda::Version v) { return Json::array({v.major, v.minor, v.patch}); }
cuda::Version version_from(const Json& j) { return {j.at(0).get<int>(), j.at(1).get<int>(), j.at(2).get<int>()}; }

void read_answer(const Json& answer, GpuFindings& f) {
  if (answer.contains("cuda")) f.driver.cuda = version_from(answer.at("cuda"));
  f.driver.why = answer.at("why").get<std::string>();
  for (const Json& g : answer.at("gpus"))
    f.driver.gpus.push_back({g.at("name").get<std::string>(), Bytes(g.at("memory").get<std::int64_t>()),
                             Bytes(g.at("l2").get<std::int64_t>()), g.at("multiprocessors").get<std::int64_t>(),
                             g.at("capability").get<std::int64_t>()});
  for (const Json& l : answer.at("libraries"))
    f.libraries.push_back(
        {l.at("name").get<std::string>(), version_from(l.at("version")), l.at("path").get<std::string>()});
}

}  // namespace

std::string gpu_answer() {
  const cuda::DriverAnswer driver = cuda::ask_driver();
  Json answer = {{"why", driver.why}, {"gpus", Json::array()}, {"libraries", Json::array()}};
  if (driver.cuda) answer["cuda"] = json_of(*driver.cuda);
  for (const cuda::GpuFacts& g : driver.gpus)
    answer["gpus"].push_back({{"name", printable(g.name)},
                              {"memory", g.memory.count()},
                              {"l2", g.l2.count()},
                              {"multiprocessors", g.multiprocessors},
                              {"capability", g.compute_capability}});
  for (const cuda::FoundLibrary& l : cuda::find_cuda_libraries())
    answer["libraries"].push_back({{"name", l.name}, {"version", json_of(l.version)}, {"path", l.path}});
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

GpuFindings gpu_findings(const ChildEnd& end) {
  GpuFindings f;
  f.hardware = cuda::find_nvidia_hardware();
  if (!end.succeeded()) {
    f.trouble = "the process that asked the driver " + end.how();
    return f;
  }
  const Json answer = Json::parse(end.out, nullptr, false);
  try {
    read_answer(answer, f);
  } catch (const Json::exception&) {
    f.trouble = "the process that asked the driver gave no answer";
  }
  return f;
}

}  // namespace fsdp::cli
