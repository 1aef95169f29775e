#include "executor/cuda/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/error.h"

namespace fsdp::cuda {

std::vector<int> place_ranks(std::int64_t ranks, int present, const std::vector<int>& wanted, bool together) {
  if (ranks < 1) throw InputError("mesh", fmt::format("{} ranks", ranks), "use at least 1");
  std::vector<int> gpus = wanted;
  if (gpus.empty()) {
    gpus.resize(static_cast<std::size_t>(std::max(present, 0)));
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i] < 0 || gpus[i] >= present)
      throw InputError("--devices", fmt::format("there is no GPU {}", gpus[i]),
                       present == 0 ? std::string("nvidia-smi lists none") : fmt::format("name some of 0 to {}", present - 1));
    if (std::find(gpus.begin(), gpus.begin() + static_cast<std::ptrdiff_t>(i), gpus[i]) != gpus.begin() + static_cast<std::ptrdiff_t>(i))
      throw InputError("--devices", fmt::format("GPU {} is named twice", gpus[i]), "name each once; --virtual-ranks puts all ranks on one");
  }
  if (gpus.empty()) throw InputError("--backend cuda", "this machine shows no GPU", "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use host");
  if (together) return std::vector<int>(static_cast<std::size_t>(ranks), gpus.front());
  if (ranks > static_cast<std::int64_t>(gpus.size()))
    throw InputError("--backend cuda", fmt::format("the plan has {} ranks, but there {} {} GPU{}", ranks, gpus.size() == 1 ? "is" : "are", gpus.size(), gpus.size() == 1 ? "" : "s"),
                     "plan for fewer ranks, put all on one GPU with --virtual-ranks, or run one rank of them with --emulate-world");
  gpus.resize(static_cast<std::size_t>(ranks));
  return gpus;
}

}  // namespace fsdp::cuda
