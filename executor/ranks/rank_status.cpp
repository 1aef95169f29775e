#include "executor/ranks/rank_status.h"

#include <fmt/format.h>

namespace fsdp::host {

Doing doing(const RankStatus& j) {
  const std::int32_t issued = j.issued.load();
  Doing result{
      0,
      issued,
      j.host.load() == RankStatus::ended ? fmt::format("has ended after operation {}", issued) : "waits for others",
      {}};
  const auto consider = [&](int blame, std::int32_t op, std::string what) {
    if (blame > result.blame) result = {blame, op, std::move(what), {}};
  };
  for (int s = 0; s < kStreams; ++s) {
    const RankStatus::OnStream& stream = j.streams[static_cast<std::size_t>(s)];
    const auto on = name(static_cast<Stream>(s));
    const std::int32_t op = stream.op.load();
    switch (stream.state.load()) {
      case RankStatus::kernel: consider(4, op, fmt::format("is inside operation {} on stream {}", op, on)); break;
      case RankStatus::collective:
        consider(2, op, fmt::format("waits in collective operation {} on stream {}", op, on));
        break;
      case RankStatus::waiting_for_event:
        consider(1, op,
                 fmt::format("waits with operation {} on stream {} for operation {}", op, on, stream.event.load()));
        break;
      default: break;
    }
  }
  if (j.host.load() == RankStatus::busy) consider(3, issued, fmt::format("issues nothing after operation {}", issued));
  return result;
}

}  // namespace fsdp::host
