// Logs of nccl-tests from arbitrary text: an InputError, or samples of positive sizes and times, and their curves.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "simulator/published/nccl_tests.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const fsdp::NcclLogOptions& options : {fsdp::NcclLogOptions{}, fsdp::NcclLogOptions{16, 8}}) {
    fsdp::fuzz::refuses_politely([&] {
      std::istringstream log(std::string(reinterpret_cast<const char*>(data), size));
      const fsdp::NcclLog read = fsdp::read_nccl_tests(log, "fuzz", options);
      for (const fsdp::CollectiveCurve& curve : fsdp::curves_of(read.samples))
        for (const fsdp::CurvePoint& p : curve.points)
          fsdp::fuzz::require(std::isfinite(p.seconds) && p.seconds > 0 && p.size > 0, "a curve's points are positive");
    });
  }
  return 0;
}
