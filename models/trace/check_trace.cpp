#include "models/trace/check_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/index.h"
#include "models/input/error.h"

namespace fsdp {

namespace {

constexpr std::size_t kMostValues = std::size_t{1} << 24;

class Settling {
 public:
  Settling(ModelGraph& graph, std::string_view where) : g_(graph), where_(where) {}

  void all() {
    number();
    for (std::size_t i = 0; i < g_.trace.ops.size(); ++i) forward(static_cast<std::int32_t>(i));
    for (std::size_t i = g_.trace.ops.size(); i-- > 0;) backward(static_cast<std::int32_t>(i));
  }

 private:
  using What = TracedEvent::What;

  [[noreturn]] void refuse(std::int32_t op, const std::string& problem) const {
    throw InputError(Origin(std::string(where_), fmt::format("ops[{}]", op)), problem, "export the model again");
  }
  const TracedKind& kind(std::int32_t op) const { return g_.trace.kinds[at(g_.trace.ops[at(op)].kind)]; }

  void number() {
    std::size_t values = 0, gradients = 0;
    for (TracedOp& op : g_.trace.ops) {
      op.first_value = static_cast<std::int32_t>(values);
      values += g_.trace.kinds[at(op.kind)].forward.makes.size();
      if (values > kMostValues) refuse(0, "the ops make too many values");
    }
    for (auto op = g_.trace.ops.rbegin(); op != g_.trace.ops.rend(); ++op) {
      op->first_gradient_value = static_cast<std::int32_t>(gradients);
      const TracedKind& k = g_.trace.kinds[at(op->kind)];
      gradients += k.backward ? k.backward->makes.size() : 0;
      if (gradients > kMostValues) refuse(0, "the ops make too many values");
    }
    states_.assign(values, State::to_come), gradient_states_.assign(gradients, State::to_come);
  }

  enum class State : char { to_come, alive, gone };

  // The id that an event names, in the states of its kind.
  std::size_t named(std::int32_t i, const TracedEvent& e, const std::vector<std::int32_t>& list, std::int32_t first,
                    std::size_t made) const {
    const auto index = static_cast<std::size_t>(e.index);
    if (index >= (e.is_own ? made : list.size())) refuse(i, "an event names a value that the op does not");
    return e.is_own ? static_cast<std::size_t>(first) + index : static_cast<std::size_t>(list[index]);
  }

  void appear(std::int32_t i, std::vector<State>& states, std::size_t value) const {
    if (states[value] != State::to_come) refuse(i, "a value appears twice");
    states[value] = State::alive;
  }
  void go(std::int32_t i, std::vector<State>& states, std::size_t value) const {
    if (states[value] != State::alive) refuse(i, "a value goes that is not there");
    states[value] = State::gone;
  }
  void all_appeared(std::int32_t i, const std::vector<State>& states, std::int32_t first, std::size_t made) const {
    for (std::size_t k = 0; k < made; ++k)
      if (states[static_cast<std::size_t>(first) + k] == State::to_come) refuse(i, "a value never appears");
  }

  void forward(std::int32_t i) {
    const TracedOp& op = g_.trace.ops[at(i)];
    const TracedKind& k = kind(i);
    if (static_cast<std::size_t>(k.reads) > op.values.size()) refuse(i, "it reads more values than it names");
    for (std::size_t n = 0; n < op.values.size(); ++n) {  // only its backward may name what came after it
      const auto most =
          static_cast<std::int32_t>(n < static_cast<std::size_t>(k.reads) ? op.first_value : states_.size());
      if (op.values[n] < 0 || op.values[n] >= most) refuse(i, "it names a value that no op before it makes");
    }
    for (const TracedEvent& e : k.forward.events) {
      const std::size_t value = named(i, e, op.values, op.first_value, k.forward.makes.size());
      if (e.what == What::appears) appear(i, states_, value);
      else go(i, states_, value);
    }
    all_appeared(i, states_, op.first_value, k.forward.makes.size());
    if (!op.gradients.empty() && !k.backward) refuse(i, "it trains a parameter and has no backward");
  }

  void backward(std::int32_t i) {
    const TracedOp& op = g_.trace.ops[at(i)];
    const TracedKind& k = kind(i);
    for (const std::int32_t v : op.gradient_values)
      if (v < 0 || v >= op.first_gradient_value) refuse(i, "it names a gradient that no op behind it makes");
    if (!k.backward) return;
    std::vector<std::size_t> let_go;
    for (const TracedEvent& e : k.backward->events) {
      if (e.of_forward) {
        const std::size_t value = named(i, e, op.values, op.first_value, k.forward.makes.size());
        if (std::find(let_go.begin(), let_go.end(), value) != let_go.end()) refuse(i, "it lets go of a value twice");
        let_go.push_back(value);
        continue;
      }
      const std::size_t value = named(i, e, op.gradient_values, op.first_gradient_value, k.backward->makes.size());
      if (e.what == What::appears) appear(i, gradient_states_, value);
      else go(i, gradient_states_, value);
    }
    all_appeared(i, gradient_states_, op.first_gradient_value, k.backward->makes.size());
  }

  ModelGraph& g_;
  std::string_view where_;
  std::vector<State> states_, gradient_states_;
};

}  // namespace

void settle_trace(ModelGraph& graph, std::string_view where) { Settling(graph, where).all(); }

}  // namespace fsdp
