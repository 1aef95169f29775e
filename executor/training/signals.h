// SIGINT, SIGTERM and SIGHUP end a run instead of the process, so that it can say at which step it was and leave
// nothing half done: the backends look here while they wait. A launcher also sends SIGTERM when another rank has died,
// and there is a moment to say which.
#pragma once

#include <string>

namespace fsdp {

void note_signals();               // from now on; a second SIGINT ends the process at once, as it always did
[[nodiscard]] int noted_signal();  // the first that came; 0: none
[[nodiscard]] std::string signal_name(int signal);  // "SIGINT"; "signal 34" for others

}  // namespace fsdp
