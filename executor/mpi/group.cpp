#include "executor/mpi/group.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "executor/ranks/reduce.h"

namespace fsdp::mpi {
namespace {

using host::CollectiveAction;
using host::CollectiveCall;
using host::RunControl;

constexpr std::int64_t kStaging = 4 << 20, kLargestChunk = 1 << 20,
                       kSmallestChunk = 16 << 10;  // bytes; of a group, of one rank's part

// A CollectiveCall as it is sent, followed by the slots' sizes, zeros where they are all alike. What means nothing for
// the call is the same on all ranks, so that equal calls are equal bytes up to `op`.
struct Header {
  std::int32_t action = 0, type = 0, reduction = 0, uneven = 0;
  std::int64_t elements = 0, root = 0;
  double multiply = 1;
  std::int64_t op = -1;
};
constexpr std::size_t kCompared = offsetof(Header, op);

Header header_of(const CollectiveCall& p) {
  Header h;
  h.action = static_cast<std::int32_t>(p.action);
  h.type = static_cast<std::int32_t>(p.type);
  if (p.action == CollectiveAction::reduce_scatter || p.action == CollectiveAction::all_reduce) {
    h.reduction = static_cast<std::int32_t>(p.reduction.kind);
    if (p.reduction.kind == ReductionKind::scaled_sum) h.multiply = p.reduction.multiply;
  }
  h.uneven = p.counts ? 1 : 0;
  h.elements = p.counts ? 0 : p.elements;
  h.root = p.root;
  h.op = p.op;
  return h;
}

// How a buffer is divided among the members: their slots, or for an all-reduce near-equal parts.
struct Parts {
  const CollectiveCall& p;
  std::int64_t members, chunk;
  Parts(const CollectiveCall& call, std::int64_t n) : p(call), members(n), chunk((call.elements + n - 1) / n) {}
  [[nodiscard]] bool near_equal() const { return p.action == CollectiveAction::all_reduce; }
  [[nodiscard]] std::int64_t begin(std::int64_t m) const {
    return near_equal() ? std::min(m * chunk, p.elements) : p.slot_begin(m);
  }
  [[nodiscard]] std::int64_t count(std::int64_t m) const { return near_equal() ? begin(m + 1) - begin(m) : p.slot(m); }
  [[nodiscard]] std::int64_t largest() const {
    std::int64_t most = 0;
    for (std::int64_t m = 0; m < members; ++m) most = std::max(most, count(m));
    return most;
  }
};

class MpiGroup final : public host::Group {
 public:
  MpiGroup(const Channel& channel, std::vector<std::int64_t> ranks, std::int64_t rank, int tag)
      : ranks_(std::move(ranks)),
        me_(member(rank)),
        tag_(tag),
        headers_(channel, 2 * ranks_.size()),
        header_bytes_(sizeof(Header) + 8 * ranks_.size()),
        header_space_(ranks_.size() * header_bytes_),
        inputs_(ranks_.size()) {
    for (int i = 0; i < 2; ++i) data_.emplace_back(channel, 2 * ranks_.size());
    const auto others = static_cast<std::int64_t>(ranks_.size()) - 1;
    chunk_bytes_ =
        std::clamp(kStaging / 2 / std::max<std::int64_t>(others, 1) / 64 * 64, kSmallestChunk, kLargestChunk);
    if (others > 0) staging_.resize(static_cast<std::size_t>(2 * others * chunk_bytes_));
  }

  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(ranks_.size()); }
  [[nodiscard]] std::int64_t member(std::int64_t rank) const override {
    return std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
  }
  std::int64_t run(const RunControl&, std::int64_t member, const CollectiveCall&) override;
  [[nodiscard]] std::vector<std::int64_t> absent() const override;

 private:
  enum Tag : int { header, scatter, gather };
  [[nodiscard]] std::int64_t rank_of(std::int64_t m) const { return ranks_[static_cast<std::size_t>(m)]; }
  [[nodiscard]] std::byte* header_of_member(std::int64_t m) {
    return header_space_.data() + static_cast<std::size_t>(m) * header_bytes_;
  }
  [[nodiscard]] std::byte* staging(std::int64_t turn, std::int64_t m) {
    return staging_.data() + ((turn % 2) * (size() - 1) + (m < me_ ? m : m - 1)) * chunk_bytes_;
  }
  void meet(const RunControl&, const CollectiveCall&);
  void check_headers();
  void all_gather(const RunControl&, const CollectiveCall&, const Parts&);
  void reduce_scatter(const RunControl&, const CollectiveCall&, const Parts&, std::byte* output);
  void broadcast(const RunControl&, const CollectiveCall&);

  std::vector<std::int64_t> ranks_;
  std::int64_t me_;
  int tag_;
  Requests headers_;
  std::size_t header_bytes_;
  std::vector<std::byte> header_space_;
  std::vector<Requests> data_;  // two turns
  std::vector<std::byte> staging_;
  std::int64_t chunk_bytes_ = 0;
  std::vector<const std::byte*> inputs_;
};

// No byte of data moves before every rank has said what it brings. The messages of member m have index m (receive; own:
// unused).
void MpiGroup::meet(const RunControl& control, const CollectiveCall& p) {
  std::byte* mine = header_of_member(me_);
  const Header h = header_of(p);
  std::memset(mine, 0, header_bytes_);
  std::memcpy(mine, &h, sizeof(h));
  if (p.counts) std::memcpy(mine + sizeof(h), p.counts->data(), 8 * ranks_.size());
  const auto bytes = static_cast<std::int64_t>(header_bytes_);
  for (std::int64_t m = 0; m < size(); ++m)
    if (m != me_) (void)headers_.receive(rank_of(m), tag_ + header, header_of_member(m), bytes);
  for (std::int64_t m = 0; m < size(); ++m)
    if (m != me_) (void)headers_.send(rank_of(m), tag_ + header, mine, bytes);
  headers_.wait(control);
  for (std::int64_t m = 0; m < size(); ++m) {
    const std::byte* other = header_of_member(m);
    if (std::memcmp(other, mine, kCompared) != 0 ||
        std::memcmp(other + sizeof(Header), mine + sizeof(Header), 8 * ranks_.size()) != 0)
      check_headers();
  }
}

void MpiGroup::check_headers() {
  std::vector<CollectiveCall> calls(ranks_.size());
  for (std::int64_t m = 0; m < size(); ++m) {
    CollectiveCall& p = calls[static_cast<std::size_t>(m)];
    Header h;
    std::memcpy(&h, header_of_member(m), sizeof(h));
    p.action = static_cast<CollectiveAction>(h.action);
    p.type = static_cast<DType>(h.type);
    p.reduction = {static_cast<ReductionKind>(h.reduction), h.multiply};
    p.elements = h.elements;
    p.root = h.root;
    p.op = static_cast<std::int32_t>(h.op);
    if (h.uneven == 0) continue;
    std::vector<std::int64_t> counts(ranks_.size());
    std::memcpy(counts.data(), header_of_member(m) + sizeof(h), 8 * counts.size());
    p.counts = std::make_shared<const std::vector<std::int64_t>>(std::move(counts));
  }
  host::check_same_call(ranks_, calls);
}

std::vector<std::int64_t> MpiGroup::absent() const {
  std::vector<std::int64_t> result;
  for (std::int64_t m = 0, i = 0; m < size(); ++m) {
    if (m == me_) continue;
    if (headers_.pending(static_cast<std::size_t>(i))) result.push_back(rank_of(m));
    ++i;
  }
  return result;
}

void MpiGroup::all_gather(const RunControl& control, const CollectiveCall& p, const Parts& parts) {
  const std::int64_t width = size_of(p.type), most = parts.largest(), window = Requests::kLargest / width;
  for (std::int64_t first = 0; first < most; first += window) {
    const auto bytes = [&](std::int64_t m) {
      return std::clamp<std::int64_t>(parts.count(m) - first, 0, window) * width;
    };
    const auto at = [&](std::int64_t m) { return p.output + (parts.begin(m) + first) * width; };
    for (std::int64_t i = 1; i < size(); ++i) {
      const std::int64_t from = (me_ + size() - i) % size();
      if (bytes(from) > 0) (void)data_[0].receive(rank_of(from), tag_ + gather, at(from), bytes(from));
    }
    for (std::int64_t i = 1; i < size() && bytes(me_) > 0; ++i)
      (void)data_[0].send(rank_of((me_ + i) % size()), tag_ + gather, at(me_), bytes(me_));
    data_[0].wait(control);
  }
}

// While one chunk is added, the next is on its way.
void MpiGroup::reduce_scatter(const RunControl& control, const CollectiveCall& p, const Parts& parts,
                              std::byte* output) {
  const std::int64_t width = size_of(p.type), chunk = chunk_bytes_ / width,
                     turns = (parts.largest() + chunk - 1) / chunk;
  const auto count = [&](std::int64_t m, std::int64_t turn) {
    return std::clamp<std::int64_t>(parts.count(m) - turn * chunk, 0, chunk);
  };
  const auto at = [&](std::int64_t m, std::int64_t turn) { return p.input + (parts.begin(m) + turn * chunk) * width; };
  const auto start = [&](std::int64_t turn) {
    Requests& data = data_[static_cast<std::size_t>(turn % 2)];
    for (std::int64_t i = 1; i < size() && count(me_, turn) > 0; ++i) {
      const std::int64_t from = (me_ + size() - i) % size();
      (void)data.receive(rank_of(from), tag_ + scatter, staging(turn, from), count(me_, turn) * width);
    }
    for (std::int64_t i = 1; i < size(); ++i) {
      const std::int64_t to = (me_ + i) % size();
      if (count(to, turn) > 0) (void)data.send(rank_of(to), tag_ + scatter, at(to, turn), count(to, turn) * width);
    }
  };
  if (turns > 0) start(0);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    if (turn + 1 < turns) start(turn + 1);
    data_[static_cast<std::size_t>(turn % 2)].wait(control);
    for (std::int64_t m = 0; m < size(); ++m)
      inputs_[static_cast<std::size_t>(m)] = m == me_ ? at(m, turn) : staging(turn, m);
    host::reduce_in_order(p.type, p.reduction, inputs_, count(me_, turn), output + turn * chunk_bytes_ / width * width);
  }
}

void MpiGroup::broadcast(const RunControl& control, const CollectiveCall& p) {
  const std::int64_t bytes = p.elements * size_of(p.type);
  for (std::int64_t first = 0; first < bytes; first += Requests::kLargest) {
    const std::int64_t n = std::min(bytes - first, Requests::kLargest);
    if (me_ != p.root) (void)data_[0].receive(rank_of(p.root), tag_ + gather, p.output + first, n);
    for (std::int64_t i = 1; i < size() && me_ == p.root; ++i)
      (void)data_[0].send(rank_of((me_ + i) % size()), tag_ + gather, p.input + first, n);
    data_[0].wait(control);
  }
}

std::int64_t MpiGroup::run(const RunControl& control, std::int64_t, const CollectiveCall& p) {
  meet(control, p);
  const Parts parts(p, size());
  const std::int64_t width = size_of(p.type), mine = parts.count(me_);
  const auto others = [&] {
    return (p.counts ? parts.begin(size() - 1) + parts.count(size() - 1) : size() * p.elements) - mine;
  };
  switch (p.action) {
    case CollectiveAction::all_gather: all_gather(control, p, parts); return others() * width;
    case CollectiveAction::reduce_scatter:
      reduce_scatter(control, p, parts, p.output);
      return (size() - 1) * mine * width;
    case CollectiveAction::all_reduce:
      reduce_scatter(control, p, parts, p.output + parts.begin(me_) * width);
      all_gather(control, p, parts);
      return ((size() - 1) * mine + p.elements - mine) * width;
    case CollectiveAction::broadcast: broadcast(control, p); return me_ == p.root ? 0 : p.elements * width;
  }
  return 0;
}

}  // namespace

std::shared_ptr<host::Group> make_group(const Channel& channel, std::vector<std::int64_t> ranks, std::int64_t rank,
                                        int tag) {
  return std::make_shared<MpiGroup>(channel, std::move(ranks), rank, tag);
}

}  // namespace fsdp::mpi
