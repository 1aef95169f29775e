#include "executor/mpi/exchange.h"

#include <algorithm>
#include <utility>

namespace fsdp::mpi {

std::vector<std::string> exchange_texts(const Channel& channel, const host::RunControl& control, std::int64_t rank,
                                        std::int64_t ranks, int tag, const std::string& own_text, Texts& on_their_way) {
  const auto n = static_cast<std::size_t>(ranks);
  Requests messages(channel, 2 * n);
  const std::string& mine = on_their_way.mine = own_text;
  std::vector<std::int64_t>& lengths = on_their_way.lengths;
  std::vector<std::string>& texts = on_their_way.all;
  lengths.assign(n, 0);
  lengths[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(mine.size());
  const auto others = [&](auto call) {
    for (std::int64_t r = 0; r < ranks; ++r)
      if (r != rank) call(r, static_cast<std::size_t>(r));
  };
  others([&](std::int64_t r, std::size_t i) { (void)messages.receive(r, tag, &lengths[i], 8); });
  others(
      [&](std::int64_t r, std::size_t) { (void)messages.send(r, tag, &lengths[static_cast<std::size_t>(rank)], 8); });
  messages.wait(control);
  texts.assign(n, {});
  texts[static_cast<std::size_t>(rank)] = mine;
  others([&](std::int64_t, std::size_t i) { texts[i].resize(static_cast<std::size_t>(lengths[i])); });
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (std::int64_t first = 0; first < longest; first += Requests::kLargest) {
    const auto part = [&](std::size_t i) {
      return std::clamp<std::int64_t>(lengths[i] - first, 0, Requests::kLargest);
    };
    const std::int64_t own = part(static_cast<std::size_t>(rank));
    others([&](std::int64_t r, std::size_t i) {
      if (part(i) > 0) (void)messages.receive(r, tag + 1, texts[i].data() + first, part(i));
    });
    others([&](std::int64_t r, std::size_t) {
      if (own > 0) (void)messages.send(r, tag + 1, mine.data() + first, own);
    });
    messages.wait(control);
  }
  return std::move(texts);
}

}  // namespace fsdp::mpi
