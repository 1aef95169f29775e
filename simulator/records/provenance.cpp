#include "simulator/records/provenance.h"

#include "planner/costs.h"

namespace fsdp {

Provenance provenance_of(const Program& program, const CostContext& c) {
  return {c.plan.model_name,      program.model_digest,     program.plan_digest,
          c.cluster.name,         c.cluster.digest(),       digest(c.costs),
          program.implementation, digest(c.implementation), std::string(name(program.dialect))};
}

}  // namespace fsdp
