#include "executor/ranks/control_plane.h"

#include <utility>

#include "executor/ranks/mailbox.h"

namespace fsdp::host {
namespace {

class ThreadControlPlane final : public ControlPlane {
 public:
  ThreadControlPlane(std::vector<std::int64_t> ranks, const WatchTimes& times)
      : ranks_(std::move(ranks)), times_(times), mailbox_(static_cast<std::int64_t>(ranks_.size()), control_) {}
  [[nodiscard]] const std::shared_ptr<RunControl>& control() const override { return control_; }
  [[nodiscard]] std::shared_ptr<RankStatus> fresh_status() override { return std::make_shared<RankStatus>(); }
  [[nodiscard]] std::vector<std::string> exchange(std::int64_t rank, const std::string& mine) override {
    return mailbox_.exchange(rank, mine);
  }
  [[nodiscard]] bool watch(const std::function<Doing(std::size_t)>& doing) override {
    return host::watch(*control_, ranks_, doing, times_);
  }
  void end(std::shared_ptr<const void>) override { control_->throw_if_failed(); }

 private:
  const std::vector<std::int64_t> ranks_;
  const WatchTimes times_;
  const std::shared_ptr<RunControl> control_ = std::make_shared<RunControl>();
  Mailbox mailbox_;
};

}  // namespace

std::shared_ptr<ControlPlane> make_thread_control_plane(std::vector<std::int64_t> ranks, const WatchTimes& times) {
  return std::make_shared<ThreadControlPlane>(std::move(ranks), times);
}

}  // namespace fsdp::host
