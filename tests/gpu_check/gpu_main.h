// `main` of a test that needs a GPU: where there is none it says so in one line and does nothing (CTest: skipped).
#pragma once

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "executor/cuda_backend.h"

int main(int argc, char** argv) {
  if (const std::string why = fsdp::why_no_cuda(); !why.empty()) {
    std::printf("skipped, %s\n", why.c_str());
    return 0;
  }
  return doctest::Context(argc, argv).run();
}
