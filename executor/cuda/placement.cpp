#include "executor/cuda/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "models/input/error.h"

namespace fsdp::cuda {

namespace {

// Those that there are, of the wanted ones.
std::vector<int> usable(int present, const std::vector<int>& wanted) {
  std::vector<int> gpus = wanted;
  if (gpus.empty()) {
    gpus.resize(static_cast<std::size_t>(std::max(present, 0)));
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i] < 0 || gpus[i] >= present)
      throw InputError(
          setting("devices"), fmt::format("there is no GPU {}", gpus[i]),
          present == 0 ? std::string("nvidia-smi lists none") : fmt::format("name some of 0 to {}", present - 1));
    if (std::find(gpus.begin(), gpus.begin() + static_cast<std::ptrdiff_t>(i), gpus[i]) !=
        gpus.begin() + static_cast<std::ptrdiff_t>(i))
      throw InputError(setting("devices"), fmt::format("GPU {} is named twice", gpus[i]),
                       "name each once; --virtual-ranks puts all ranks on one");
  }
  if (gpus.empty())
    throw InputError(setting("cuda_backend"), "this machine shows no GPU",
                     "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use host");
  return gpus;
}

}  // namespace

std::vector<int> place_ranks(std::int64_t ranks, int present, const std::vector<int>& wanted, bool together) {
  if (ranks < 1) throw InputError("mesh", fmt::format("{} ranks", ranks), "use at least 1");
  std::vector<int> gpus = usable(present, wanted);
  if (together) return std::vector<int>(static_cast<std::size_t>(ranks), gpus.front());
  if (ranks > static_cast<std::int64_t>(gpus.size()))
    throw InputError(
        setting("cuda_backend"),
        fmt::format("the plan has {} ranks, but there {} {} GPU{}", ranks, gpus.size() == 1 ? "is" : "are", gpus.size(),
                    gpus.size() == 1 ? "" : "s"),
        "plan for fewer ranks, put all on one GPU with --virtual-ranks, or run one rank of them with --emulate-world");
  gpus.resize(static_cast<std::size_t>(ranks));
  return gpus;
}

int place_process(std::int64_t place, int present, const std::vector<int>& wanted) {
  const std::vector<int> gpus = usable(present, wanted);
  return gpus[static_cast<std::size_t>(place) % gpus.size()];
}

std::string format_assignment(const DeviceAssignment& s) { return fmt::format("{}\n{}\n{}", s.number, s.gpu, s.host); }

DeviceAssignment parse_assignment(const std::string& text) {
  const std::size_t first = text.find('\n'), second = first == std::string::npos ? first : text.find('\n', first + 1);
  DeviceAssignment s;
  const auto digits = second == std::string::npos ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                                                  : std::from_chars(text.data(), text.data() + first, s.number);
  if (digits.ec != std::errc{} || digits.ptr != text.data() + first)
    throw MachineError("another rank did not say which GPU it uses: are all processes of one version of this program?");
  s.gpu = text.substr(first + 1, second - first - 1);
  s.host = text.substr(second + 1);
  return s;
}

void check_assignments(const std::vector<DeviceAssignment>& by_rank) {
  for (std::size_t i = 0; i < by_rank.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (by_rank[i].gpu == by_rank[j].gpu)
        throw InputError(setting("cuda_backend"),
                         fmt::format("ranks {} and {} are on one GPU, {} of {} ({})", j, i, by_rank[j].number,
                                     by_rank[j].host, by_rank[j].gpu),
                         "start no more processes on a machine than it shows GPUs (CUDA_VISIBLE_DEVICES, --devices), "
                         "or one process alone with --virtual-ranks");
}

}  // namespace fsdp::cuda
