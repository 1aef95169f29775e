// The race proof against an independent oracle (transitive closure by Boost.Graph, rules checked pair by pair), and
// mutants of lowered programs that it must refuse.
#include "simulator/engine/race.h"

#include <doctest/doctest.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/transitive_closure.hpp>
#include <random>

#include "models/implementation.h"
#include "planner/lower.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

const Implementation& native() { return find_implementation("native", false, "test"); }

struct Event {  // one operation of the unrolled program
  const Step* step = nullptr;
  const Operation* op = nullptr;
  std::size_t index = 0;
};

// Happens-before as an explicit graph, then its closure; every rule is checked over all pairs.
class Oracle {
 public:
  explicit Oracle(const Program& p) : p_(p) {
    const Step* steps[] = {&p.init, &p.first_step, &p.steady_step, &p.steady_step};
    std::vector<std::pair<int, int>> edges;
    std::array<int, kStreams> last;
    last.fill(-1);
    int host = -1;
    for (const Step* s : steps) {
      const int base = static_cast<int>(events_.size());
      const auto before = last;
      bool first_compute = true;
      for (std::size_t i = 0; i < s->ops.size(); ++i) {
        const Operation& op = s->ops[i];
        const int me = static_cast<int>(events_.size());
        events_.push_back({s, &op, i});
        if (op.action == Action::host_wait)
          for (std::int32_t w : s->waits_of(op))
            if (w >= 0) host_waits_.push_back(base + w);
        if (op.host_only) continue;
        for (int w : host_waits_) edges.emplace_back(w, me);
        if (op.action == Action::read_loss) host = last[static_cast<std::size_t>(op.stream)];
        if (host >= 0) edges.emplace_back(host, me);
        int& previous = last[static_cast<std::size_t>(op.stream)];
        if (previous >= 0) edges.emplace_back(previous, me);
        previous = me;
        for (std::int32_t w : s->waits_of(op)) edges.emplace_back(base + w, me);
        if (op.stream == Stream::compute && first_compute) {
          for (int b : before)
            if (b >= 0) edges.emplace_back(b, me);
          first_compute = false;
        }
      }
    }
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
    Graph graph(edges.begin(), edges.end(), events_.size()), closed;
    boost::transitive_closure(graph, closed);
    before_.assign(events_.size() * events_.size(), 0);
    for (auto [e, end] = boost::edges(closed); e != end; ++e)
      before_[source(*e, closed) * events_.size() + target(*e, closed)] = 1;
  }

  bool racy() const {
    struct Life {
      int begin = 0, end = 0;
      std::vector<std::pair<int, bool>> uses;
      std::int32_t buffer = 0;
    };
    std::vector<Life> lives;
    std::vector<int> open(p_.buffers.size(), -1);
    for (std::size_t e = 0; e < events_.size(); ++e) {
      const Event& ev = events_[e];
      for (std::int32_t b : ev.step->allocs_of(*ev.op)) {
        if (open[at(b)] >= 0) return true;
        open[at(b)] = static_cast<int>(lives.size());
        lives.push_back({static_cast<int>(e), static_cast<int>(events_.size()), {}, b});
      }
      for (const Arg& a : ev.step->args_of(*ev.op)) {
        if (a.buffer < 0 || ev.op->host_only) continue;
        if (open[at(a.buffer)] < 0) return true;
        lives[at(open[at(a.buffer)])].uses.emplace_back(static_cast<int>(e), a.access != Access::read);
      }
      for (std::int32_t b : ev.step->frees_of(*ev.op)) {
        if (open[at(b)] < 0) return true;
        lives[at(open[at(b)])].end = static_cast<int>(e);
        open[at(b)] = -1;
      }
    }
    for (const Life& l : lives) {
      for (auto [x, wx] : l.uses)
        for (auto [y, wy] : l.uses)
          if (x < y && (wx || wy) && !hb(x, y)) return true;
      const Stream pool = p_.buffers[at(l.buffer)].pool;
      for (std::size_t e = static_cast<std::size_t>(l.end) + 1; e < events_.size(); ++e) {
        if (events_[e].op->host_only || events_[e].op->stream != pool) continue;
        for (auto [x, w] : l.uses)
          if (!marked(l.buffer, x) && !hb(x, static_cast<int>(e))) return true;
        break;
      }
      for (const Life& m : lives) {
        const Buffer &a = p_.buffers[at(l.buffer)], &b = p_.buffers[at(m.buffer)];
        if (&l == &m || a.offset < 0 || b.offset < 0 || a.offset + a.bytes <= b.offset ||
            b.offset + b.bytes <= a.offset)
          continue;
        if (m.begin > l.end) {
          for (auto [x, wx] : l.uses)
            for (auto [y, wy] : m.uses)
              if (!hb(x, y)) return true;
        } else if (l.begin <= m.begin) {
          return true;
        }
      }
    }
    return false;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  // Does the allocator wait for this use by itself?
  bool marked(std::int32_t buffer, int use) const {
    return ((p_.buffers[at(buffer)].recorded_streams >> static_cast<unsigned>(events_[at(use)].op->stream)) & 1U) != 0;
  }
  bool hb(int a, int b) const { return before_[at(a) * events_.size() + at(b)] != 0; }
  const Program& p_;
  std::vector<Event> events_;
  std::vector<int> host_waits_;  // what the host has waited for: before everything that it issues from then on
  std::vector<char> before_;
};

ShardingPlan small_plan(const ModelGraph& model) {
  ShardingPlan plan = toy::plan(model, 2, 2);
  plan.param_dtype = DType::bf16;
  plan.clip_norm = 1.0;
  return plan;
}

void drop_wait(Step& step, std::uint32_t op, std::uint32_t k) {
  Operation& o = step.ops[op];
  std::swap(step.waits[o.waits.begin + k], step.waits[o.waits.begin + o.waits.count - 1]);
  --o.waits.count;
}

}  // namespace

TEST_CASE("an event removed is a race, whichever it is, or is implied by others: the oracle decides") {
  const ModelGraph model = toy::model({.blocks = 3});
  Program program = lower(model, small_plan(model), native());
  assign_arena(program);
  REQUIRE(find_races(program).empty());
  REQUIRE_FALSE(Oracle(program).racy());
  int racy = 0, checked = 0;
  for (std::uint32_t i = 0; i < program.steady_step.ops.size(); ++i) {
    for (std::uint32_t k = 0; k < program.steady_step.ops[i].waits.count; ++k) {
      Program mutant = program;
      drop_wait(mutant.steady_step, i, k);
      const bool found = !find_races(mutant).empty();
      CAPTURE(i);
      CAPTURE(k);
      CHECK(found == Oracle(mutant).racy());
      racy += found;
      ++checked;
    }
  }
  MESSAGE(racy << " of " << checked << " single waits are indispensable");
  CHECK(racy * 10 >= checked * 7);
}

TEST_CASE("random mutants: proof and oracle agree") {
  const ModelGraph model = toy::model({.blocks = 2});
  Program program = lower(model, small_plan(model), native());
  assign_arena(program);
  std::mt19937 random(7);
  int racy = 0;
  for (int trial = 0; trial < 120; ++trial) {
    Program mutant = program;
    Step& step = trial % 2 ? mutant.steady_step : mutant.first_step;
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    switch (trial % 4) {
      case 0: step.ops[pick(step.ops.size())].stream = static_cast<Stream>(pick(kStreams)); break;
      case 1: {
        const std::size_t i = pick(step.ops.size() - 1);
        std::swap(step.ops[i].frees, step.ops[i + 1].frees);
        break;
      }
      case 2: {
        Buffer& b = mutant.buffers[pick(mutant.buffers.size())];
        b.offset = mutant.buffers[pick(mutant.buffers.size())].offset;
        break;
      }
      default: {
        Buffer& b = mutant.buffers[pick(mutant.buffers.size())];
        b.pool = static_cast<Stream>(pick(kStreams));
        break;
      }
    }
    CAPTURE(trial);
    const bool found = !find_races(mutant).empty();
    CHECK(found == Oracle(mutant).racy());
    racy += found;
  }
  CHECK(racy > 20);
  CHECK(racy < 120);
}

TEST_CASE("the gather buffer freed before its last reader") {
  const ModelGraph model = toy::model({.blocks = 3});
  Program program = lower(model, small_plan(model), native());
  Step& step = program.steady_step;
  bool tried = false;
  for (std::size_t i = 0; i < step.ops.size() && !tried; ++i) {
    if (step.ops[i].action != Action::gather_copy_out) continue;
    const std::int32_t gather = step.args_of(step.ops[i])[0].buffer;
    for (std::size_t j = i; j < step.ops.size(); ++j) {  // take its free away and put it at the all-gather
      for (std::int32_t& b : std::span(step.frees.data() + step.ops[j].frees.begin, step.ops[j].frees.count)) {
        if (b != gather) continue;
        std::size_t k = i;
        while (step.ops[k].action != Action::all_gather) --k;
        std::swap(b, step.frees[step.ops[j].frees.begin + step.ops[j].frees.count - 1]);
        --step.ops[j].frees.count;
        REQUIRE(step.ops[k].frees.count == 0);
        step.ops[k].frees = {static_cast<std::uint32_t>(step.frees.size()), 1};
        step.frees.push_back(gather);
        tried = true;
        break;
      }
      if (tried) break;
    }
  }
  REQUIRE(tried);
  const auto races = find_races(program);
  REQUIRE_FALSE(races.empty());
  CHECK(races[0].rule == "a buffer is used outside of its lifetime");
}

TEST_CASE("two buffers that live together may not share bytes") {
  const ModelGraph model = toy::model();
  Program program = lower(model, small_plan(model), native());
  assign_arena(program);
  std::vector<std::size_t> shards;
  for (std::size_t b = 0; b < program.buffers.size(); ++b)
    if (program.buffers[b].kind == BufferKind::parameter_shard) shards.push_back(b);
  program.buffers[shards[1]].offset = program.buffers[shards[0]].offset + 4;
  REQUIRE_FALSE(find_races(program).empty());
  CHECK(find_races(program)[0].rule == "two live buffers share bytes of the arena");
}

TEST_CASE("fsdp1: blocks marked for streams are no race, and without a mark, or with too early a free, they are") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = small_plan(model);
  plan.dialect = Dialect::fsdp1;
  for (const bool limit : {true, false}) {
    CAPTURE(limit);
    plan.limit_all_gathers = limit;
    const Program program = lower(model, plan, native());
    CHECK(find_races(program).empty());
    CHECK_FALSE(Oracle(program).racy());
    int racy = 0, marked = 0;
    for (std::size_t b = 0; b < program.buffers.size(); ++b) {
      if (program.buffers[b].recorded_streams == 0) continue;
      Program mutant = program;
      mutant.buffers[b].recorded_streams = 0;
      const bool found = !find_races(mutant).empty();
      CAPTURE(b);
      CHECK(found == Oracle(mutant).racy());
      racy += found;
      ++marked;
    }
    MESSAGE(racy << " of " << marked << " marks are indispensable");
    CHECK(racy * 2 > marked);
  }
}

TEST_CASE("fsdp1: random mutants: proof and oracle agree") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = small_plan(model);
  plan.dialect = Dialect::fsdp1;
  plan.forward_prefetch = 1;
  const Program program = lower(model, plan, native());
  std::mt19937 random(11);
  int racy = 0;
  for (int trial = 0; trial < 90; ++trial) {
    Program mutant = program;
    Step& step = trial % 2 ? mutant.steady_step : mutant.first_step;
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    switch (trial % 3) {
      case 0: step.ops[pick(step.ops.size())].stream = static_cast<Stream>(pick(kStreams)); break;
      case 1: {
        const std::size_t i = pick(step.ops.size() - 1);
        std::swap(step.ops[i].frees, step.ops[i + 1].frees);
        break;
      }
      default: {
        Operation* o = &step.ops[pick(step.ops.size())];
        while (o->waits.count == 0 || o->host_only) o = &step.ops[pick(step.ops.size())];
        drop_wait(step, static_cast<std::uint32_t>(o - step.ops.data()), 0);
      }
    }
    CAPTURE(trial);
    const bool found = !find_races(mutant).empty();
    CHECK(found == Oracle(mutant).racy());
    racy += found;
  }
  CHECK(racy > 20);
  CHECK(racy < 90);
}
