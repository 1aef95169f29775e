// How processes of one run come to know the communicator's id that rank 0 made: by a file that they all see, or by TCP.
// Both carry a run id, so that what an earlier or another run left behind is not taken for this one's, and both end after a timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::cuda {

using Id = std::vector<std::byte>;           // ncclUniqueId: 128 bytes

struct Meeting {
  std::string run_id;                        // the same for all processes of the run, another one for every run; 1 to 200 printable characters
  std::chrono::milliseconds timeout{60'000}; // for all of it
};
// Throws InputError for a run id that is none.
void check(const Meeting&);

// --- A file. It appears whole (written beside, then renamed) and goes with the IdFile.
class IdFile {
 public:
  IdFile(std::string path, const Meeting&, const Id&);       // rank 0; MachineError if it cannot be written
  ~IdFile();
  IdFile(const IdFile&) = delete;
  IdFile& operator=(const IdFile&) = delete;

 private:
  std::string path_;
};
// The others. A file of another run is waited over, and named if the time runs out: MachineError.
[[nodiscard]] Id read_id_file(const std::string& path, const Meeting&);

// --- TCP. Rank 0 listens from when this is made; serve() answers `others` processes and returns.
class IdServer {
 public:
  explicit IdServer(std::uint16_t port);                     // 0: any; MachineError if the port is taken
  ~IdServer();
  IdServer(const IdServer&) = delete;
  IdServer& operator=(const IdServer&) = delete;
  [[nodiscard]] std::uint16_t port() const { return port_; }
  // Callers with another run id are told so and not counted. MachineError when the time runs out, with how many have come.
  void serve(const Meeting&, const Id&, std::int64_t others) const;

 private:
  int socket_ = -1;
  std::uint16_t port_ = 0;
};
// The others: tries again until rank 0 listens. MachineError when the time runs out or another run answers.
[[nodiscard]] Id ask_for_id(const std::string& host, std::uint16_t port, const Meeting&);

}  // namespace fsdp::cuda
