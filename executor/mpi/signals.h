#pragma once

#include "executor/signals.h"

namespace fsdp::mpi {

using fsdp::note_signals;
using fsdp::noted_signal;

}  // namespace fsdp::mpi
