// One rank of the host backend: a worker thread per stream (made when the stream is first used), a table of finished
// operations that streams wait on, and the instruments.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "executor/ranks/collective_device.h"
#include "executor/ranks/control.h"
#include "executor/ranks/group.h"
#include "executor/ranks/instruments/arena.h"
#include "executor/ranks/rank_status.h"

namespace fsdp::host {

using Clock = std::chrono::steady_clock;
// Connection to the other ranks of one communicator.
struct Link {
  Comm comm;
  std::shared_ptr<Group> group;
};
// Connections of one rank.
struct Links {
  std::vector<Link> groups;
  std::function<std::vector<std::string>(std::int64_t rank, const std::string& mine)> exchange;
  // Of this rank. Ranks that are processes keep it where others can read it.
  std::shared_ptr<RankStatus> status = std::make_shared<RankStatus>();
};

struct PoisonChange {  // waits for its stream (see Device::release)
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  bool poisoned = false;
};

struct Task {
  std::int32_t op = -1;
  std::vector<std::int32_t> waits;
  std::vector<PoisonChange> poison;
  KernelBody body;         // a kernel, or
  Group* group = nullptr;  // a collective
  CollectiveCall call;
};

class HostDevice final : public CollectiveDevice, public std::enable_shared_from_this<HostDevice> {
 public:
  HostDevice(std::int64_t rank, Links links, std::shared_ptr<RunControl> control, Clock::time_point epoch);

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  void reserve_arena(std::int64_t bytes, Memory where) override {
    (where == Memory::host ? host_arena_ : arena_).reserve(bytes);
  }
  BufferView allocate(Stream pool, std::int64_t offset, std::int64_t bytes, Memory) override;
  void release(Stream pool, BufferView) override;
  [[nodiscard]] std::int64_t allocated_bytes() const override { return arena_.allocated_bytes(); }
  void begin_step() override;
  void launch(std::int32_t op, Stream, std::span<const std::int32_t> waits, KernelBody) override;
  void launch_kernel(std::int32_t op, Stream, std::span<const std::int32_t> waits, KernelCall) override;
  void wait_host(std::int32_t op) override;
  [[nodiscard]] bool finished(std::int32_t op) override;
  void synchronize() override;
  [[nodiscard]] std::vector<OperationRecord> records() const override;
  void write(BufferView to, std::span<const std::byte> from) override { std::copy(from.begin(), from.end(), to.data); }
  [[nodiscard]] std::span<const std::byte> bytes_of(BufferView view, std::vector<std::byte>&) const override {
    return {view.data, static_cast<std::size_t>(view.bytes)};
  }
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override;

  // For the backend.
  void run_body(const std::function<void(Device&)>& body);
  void join();  // once every worker has ended or is about to
  // Leaves a thread behind that cannot be ended, with the memory that it may still use.
  void abandon(std::shared_ptr<const void> needed);
  [[nodiscard]] Doing doing() const;

 private:
  struct Worker {
    std::condition_variable changed;
    std::deque<Task> queue;
    std::vector<OperationRecord> records;
    std::vector<PoisonChange> poison;  // for the next task (host thread only)
    RankStatus::State state = RankStatus::idle;
    std::int32_t op = -1, waiting_for = -1;
    const Group* group = nullptr;
    std::thread thread;
  };

  // Changes the worker's state and the rank's status.
  void set(Worker& w, Stream, RankStatus::State, std::int32_t event = -1);
  void set(RankStatus::Host host) { links_.status->host.store(host); }
  void change_poison(Stream pool, PoisonChange change);
  void enqueue(Stream, std::int32_t* previous, std::span<const std::int32_t> waits, Task);
  void check_new(std::int32_t op, std::span<const std::int32_t> waits) const;
  [[nodiscard]] std::size_t links() const override { return links_.groups.size(); }
  [[nodiscard]] Comm comm(std::size_t link) const override { return links_.groups[link].comm; }
  [[nodiscard]] GroupPlace place(std::size_t link) const override;
  void issue_collective(std::size_t link, std::span<const std::int32_t> waits, CollectiveCall) override;
  void wait_for(std::int32_t op);
  void check_issued(std::int32_t op) const;
  void work(Worker&, Stream);
  void take_tasks(Worker&, Stream, std::unique_lock<std::mutex>&);
  [[nodiscard]] OperationRecord run_task(const Task&, Stream) const;
  void finish(Worker&, const OperationRecord&);
  [[nodiscard]] double now() const { return std::chrono::duration<double>(Clock::now() - epoch_).count(); }

  const std::int64_t rank_;
  const Links links_;
  const std::shared_ptr<RunControl> control_;
  const Clock::time_point epoch_;
  Arena arena_, host_arena_;
  std::array<Worker, kStreams> workers_;
  std::vector<std::int32_t> last_collective_;  // of this step, by link; -1: none yet

  mutable std::mutex mutex_;  // protects the rest, and Worker's fields except where said
  std::condition_variable host_changed_;
  std::vector<char> issued_, done_;  // by operation of this step
  std::int64_t outstanding_ = 0;
  std::int32_t host_waiting_for_ = -1, last_issued_ = -1;
  bool stopping_ = false;
  std::shared_ptr<const void> needed_;
};

}  // namespace fsdp::host
