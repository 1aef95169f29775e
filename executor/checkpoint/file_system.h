// What checkpoints ask of a file system, one function per system call, as a value: tests stop, fail or record any of
// them.
//
// Every function gives what the call gives, or -errno. Nothing here follows a symbolic link in a path's last part.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

enum class EntryKind : std::uint8_t { file, folder, other };  // other: links, devices, pipes
struct Entry {
  EntryKind kind{};
  std::int64_t bytes = 0;  // of a file
};

struct FileSystem {
  std::function<int(const std::string& path)> create;  // a new file to write; fails if there is something
  std::function<int(const std::string& path)> open;    // a file to read
  std::function<int(const std::string& path)> open_folder;
  std::function<std::int64_t(int file, std::span<const std::byte>)> write;  // appends; may take less
  std::function<std::int64_t(int file, std::span<std::byte>, std::int64_t at)> read;
  std::function<int(int file)> sync, close;
  std::function<int(int folder)> lock;  // exclusive, until it is closed; -EWOULDBLOCK: another has it
  std::function<int(const std::string&path)> make_folder, remove_file, remove_folder;
  std::function<int(const std::string& from, const std::string& to)>
      rename;  // fails if `to` is a folder that holds something
  std::function<int(const std::string& folder, std::vector<std::string>& names)> list;  // sorted
  std::function<int(const std::string& path, Entry&)> inspect;
};

[[nodiscard]] FileSystem machine_file_system();

// False also where there is nothing of that name.
[[nodiscard]] bool is_kind(const FileSystem&, const std::string& path, EntryKind);

// "could not be written (No space left on device)": MachineError for what the machine refused. `result`: -errno.
[[noreturn]] void fail_machine(const std::string& path, const std::string& what, std::int64_t result);

// Writes one new file front to back; large pieces go out as they are, small ones are gathered. Throws MachineError
// naming the file.
class FileWriter {
 public:
  FileWriter(const FileSystem&, std::string path);
  ~FileWriter();  // closes; what was not finished is incomplete
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void append(std::span<const std::byte>);
  void append(const std::string&);
  void sync();    // all so far is on the disk when it returns
  void finish();  // likewise; and closes
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  void write(std::span<const std::byte>);
  void flush();
  const FileSystem& files_;
  const std::string path_;
  std::vector<std::byte> gathered_;
  std::int64_t bytes_ = 0;
  int file_ = -1;
};

// An open file to read; closed by its destructor. Throws InputError where there is no such file, or a link or folder in
// its place.
class CheckedFile {
 public:
  CheckedFile(const FileSystem&, std::string path);
  ~CheckedFile();
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;
  // All of `to` from byte `at`. Throws InputError when the file ends before, MachineError when the disk fails.
  void read(std::int64_t at, std::span<std::byte> to) const;

 private:
  const FileSystem& files_;
  const std::string path_;
  int file_ = -1;
};

// The whole text of a file of at most `most` bytes.
[[nodiscard]] std::string read_text(const FileSystem&, const std::string& path, std::int64_t most);
// What a folder holds is on the disk when it returns. Throws MachineError.
void sync_folder(const FileSystem&, const std::string& path);

}  // namespace fsdp
