// A plan as a graph in Graphviz's language: its units in the order of forward, in a box the unit around them.
//
//   write_file("plan.dot", plan_graph(plan, model, unit_layouts(plan, model)));      dot -Tsvg plan.dot -o plan.svg
//
// Units that are alike and follow one another are one node between the first and the last of them. Dashed arrows are
// prefetches that the plan lists unit by unit.
#pragma once

#include <span>
#include <string>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

[[nodiscard]] std::string plan_graph(const ShardingPlan&, const ModelGraph&, std::span<const UnitLayout>);

}  // namespace fsdp
