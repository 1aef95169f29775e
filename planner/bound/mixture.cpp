#include "planner/bound/mixture.h"

#include <algorithm>
#include <limits>

namespace fsdp {
namespace {

// The lower convex hull of ways, from the fastest to the smallest; what no mixture needs is left out.
std::vector<Way> hull_of(std::vector<Way> ways) {
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.bytes < b.bytes;
  });
  std::vector<Way> hull;
  for (const Way& w : ways) {
    if (!hull.empty() && w.bytes >= hull.back().bytes) continue;
    const auto rate = [](const Way& from, const Way& to) {  // seconds for each byte that is freed
      return (to.seconds - from.seconds) / (from.bytes - to.bytes);
    };
    while (hull.size() > 1 && rate(hull[hull.size() - 2], hull.back()) >= rate(hull.back(), w)) hull.pop_back();
    hull.push_back(w);
  }
  return hull;
}

struct Trade {  // from one way to the next on a hull
  double rate, seconds, bytes;
};

}  // namespace

double least_within(const std::vector<Alike>& parts, double room) {
  std::vector<Trade> trades;
  double seconds = 0, bytes = 0;
  for (const Alike& part : parts) {
    const std::vector<Way> hull = hull_of(part.ways);
    seconds += part.count * hull.front().seconds;
    bytes += part.count * hull.front().bytes;
    for (std::size_t i = 1; i < hull.size(); ++i) {
      const double freed = hull[i - 1].bytes - hull[i].bytes, more = hull[i].seconds - hull[i - 1].seconds;
      trades.push_back({more / freed, part.count * more, part.count * freed});
    }
  }
  std::sort(trades.begin(), trades.end(), [](const Trade& a, const Trade& b) { return a.rate < b.rate; });
  for (const Trade& t : trades) {
    if (bytes <= room) break;
    const double part = std::min(1.0, (bytes - room) / t.bytes);
    seconds += t.seconds * part;
    bytes -= t.bytes * part;
  }
  return bytes <= room * (1 + 1e-9) ? seconds : std::numeric_limits<double>::infinity();
}

}  // namespace fsdp
