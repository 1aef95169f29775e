// What a record was made from. Two documents whose model or plan digests differ are not compared.
#pragma once

#include <string>

namespace fsdp {

struct CostContext;
struct Program;

struct Provenance {
  std::string model, model_digest, plan_digest, cluster, cluster_digest, costs_digest, implementation,
      implementation_digest, dialect;
  friend bool operator==(const Provenance&, const Provenance&) = default;
};

[[nodiscard]] Provenance provenance_of(const Program&, const CostContext&);

}  // namespace fsdp
