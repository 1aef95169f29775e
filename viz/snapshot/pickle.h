// Python's pickle format, protocol 2: dictionaries, lists, texts, integers. Only what the unpickler in PyTorch's viewer
// knows is written. Texts are written once and referred to afterwards, and so is what share() says.
//
//   PickleWriter p;
//   p.begin_dict();
//   p.text("size"), p.integer(512);          // a key, its value
//   p.text("blocks"), p.begin_list(), ..., p.end_list();
//   p.end_dict();
//   std::move(p).finish()
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class PickleWriter {
 public:
  PickleWriter();
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void text(std::string_view);
  void integer(std::int64_t);
  void boolean(bool);
  // The value that was kept under this number: true, and it stands here again; else false, and it is to be written and
  // kept with keep(number).
  [[nodiscard]] bool share(std::int64_t number);
  void keep(std::int64_t number);  // what was just written
  [[nodiscard]] std::string finish() &&;

 private:
  void value();  // a value is about to be written: an item of a list, or a part of a dictionary
  void byte(unsigned value) { out_ += static_cast<char>(value); }
  void four(std::uint32_t value);
  void put();  // remembers what was just written under the next number
  void get(std::uint32_t number);

  std::string out_;
  std::vector<std::int64_t> open_;  // of each open list: its items since the last mark; -1: a dictionary
  std::map<std::string, std::uint32_t, std::less<>> texts_;
  std::map<std::int64_t, std::uint32_t> shared_;
  std::uint32_t kept_ = 0;
};

}  // namespace fsdp
