// What `doctor` says of machines that lack things, and of things that hang, crash or lie.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "models/host.h"
#include "tests/cli/program.h"

using fsdp::testing::Answer;
using fsdp::testing::Program;
using fsdp::testing::says;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

bool says(const json& text, const std::string& words) {
  return text.is_string() && fsdp::testing::says(text.get<std::string>(), words);
}

// A script in the folder that commands run in.
void write_script(const Program& program, const std::string& name, const std::string& text) {
  const fs::path path = program.work() / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  fs::permissions(path, fs::perms::owner_all);
}

json document_of(const Answer& answer) {
  CAPTURE(answer.err);
  json document = json::parse(answer.out, nullptr, false);
  REQUIRE_MESSAGE(document.is_object(), answer.out);
  REQUIRE(document["backends"].size() == 3);
  CHECK(document["can_run"] == (answer.code == 0));
  return document;
}

// What is to work has this long, on however busy a machine.
const std::string kPatient = " fsdp-plan doctor --json --time-limit 120s ";

// `before`: what stands before the program on its command line (variables), or commands.
json examined(const Program& program, const std::string& before, const std::string& flags = "", int code = 0) {
  const Answer answer = program.run(before + kPatient + flags);
  CHECK_MESSAGE(answer.code == code, answer.err);
  return document_of(answer);
}

// At a limit so short that what works may not end in time either: 4 seconds.
json examined_briefly(const Program& program, const std::string& before) {
  const Answer answer = program.run(before + " fsdp-plan doctor --json --time-limit 4s");
  CHECK_MESSAGE((answer.code == 0 || answer.code == 1), answer.err);
  return document_of(answer);
}

json backend(const json& examination, const std::string& name) {
  for (const json& b : examination["backends"])
    if (b["name"] == name) return b;
  FAIL("no backend " << name);
  return {};
}
bool is_missing(const json& examination, const std::string& what) {
  for (const json& m : examination["missing"])
    if (m["what"] == what) return !m["gives"].get<std::string>().empty() && !m["remedy"].get<std::string>().empty();
  return false;
}

bool runs_somewhere(const std::string& words) {  // as a process of this machine
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line((std::istreambuf_iterator<char>(file)), {});
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (says(line, words)) return true;
  }
  return false;
}

// The command that sleeps in this test, and in no other program of this machine.
std::string sleeping(int which) { return "sleep 98" + std::to_string(::getpid()) + "." + std::to_string(which); }

// Shell: waits for a file, a minute at most.
std::string await(const std::string& file) {
  return "for i in $(seq 1200); do [ -e " + file + " ] && break; sleep 0.05; done\n";
}

// An mpirun that does what `script` says when it is to start ranks.
void write_launcher(const Program& program, const std::string& script) {
  write_script(program, "mpirun", "[ \"$1\" = --version ] && { echo 'made-up 1.0'; exit 0; }\n" + script);
}

const std::string kNoPython = "FSDP_PLAN_PYTHON=/nowhere/python";

std::string remedy_of(const json& e, const std::string& what) {
  for (const json& m : e["missing"])
    if (m["what"] == what) return m["remedy"];
  return "";
}

}  // namespace

TEST_CASE("host works wherever these tests run, and mpi where a launcher is") {
  const Program program;
  const json e = examined(program, kNoPython);
  CHECK(backend(e, "host")["works"] == true);
  CHECK(says(backend(e, "host")["said"], "2 steps of tiny-llama"));
  if (!std::string(FSDP_MPI_LAUNCH).empty()) {
    CHECK_MESSAGE(backend(e, "mpi")["works"] == true, backend(e, "mpi").dump());
    CHECK(says(backend(e, "mpi")["started_with"], "-n 2"));
  }
  CHECK(e["host"]["usable_cores"] == fsdp::usable_cores());
  CHECK(e["host"]["memory_bytes"] == fsdp::host_limits().memory.count());
  CHECK(e["host"]["instructions"] == e["host"]["all_instructions"][0]);
  const Answer text = program.run(kNoPython + " fsdp-plan doctor --time-limit 120s");
  CHECK(text.code == 0);
  for (const char* words : {"`run` works here with: host", "MPI launcher", "NVIDIA driver", "it would give", "costs"})
    CHECK(says(text.out, words));
}

TEST_CASE("without a GPU no driver is advised") {
  const Program program;
  const json e = examined(program, kNoPython);
  if (e["nvidia"]["gpus_on_bus"] != 0 || !e["nvidia"]["kernel_module"].is_null() ||
      !e["nvidia"]["driver_cuda"].is_null()) {
    MESSAGE("a GPU or its driver is here");
    return;
  }
  for (const char* words : {"driver", "CUDA version"}) {
    CHECK_FALSE(says(backend(e, "cuda")["said"], words));
    CHECK_FALSE(says(backend(e, "cuda")["remedy"], words));
  }
}

TEST_CASE("an empty PATH leaves host, and every remedy") {
  const Program program;
  REQUIRE(program.run("ln -s \"$(command -v fsdp-plan)\" here").code == 0);
  const Answer answer = program.run("PATH= FSDP_PLAN_PYTHON= ./here doctor --json --time-limit 120s");
  CHECK(answer.code == 0);
  const json e = json::parse(answer.out, nullptr, false);
  REQUIRE(e.is_object());
  CHECK(backend(e, "host")["works"] == true);
  CHECK(backend(e, "mpi")["works"] == false);
  CHECK(is_missing(e, "backend mpi"));
  CHECK(is_missing(e, "PyTorch"));
  CHECK(e["mpi_launcher"]["path"].is_null());
  CHECK(says(e["python"]["why"], "no python3 on PATH, which is empty"));
  CHECK(says(remedy_of(e, "PyTorch"), "set PATH, or name a Python"));
  const std::string mpi = backend(e, "mpi")["said"].get<std::string>();
  CHECK_MESSAGE((says(mpi, "mpi is not built in") || says(remedy_of(e, "backend mpi"), "set PATH")), mpi);
}

TEST_CASE("what doctor advises about Python is about the Python that it found, or did not find") {
  const Program program;
  const json absent = examined(program, "FSDP_PLAN_PYTHON=/nowhere/python");
  CHECK(absent["python"]["why"] == "FSDP_PLAN_PYTHON names /nowhere/python, which is no program");
  CHECK(remedy_of(absent, "PyTorch") == "correct FSDP_PLAN_PYTHON, or unset it for the python3 on PATH");
  CHECK(says(examined(program, "FSDP_PLAN_PYTHON=nopython")["python"]["why"], "which is no program on PATH"));
  write_script(program, "broken", "echo; echo 'ImportError: no encodings' >&2; exit 1");
  const json broken = examined(program, "FSDP_PLAN_PYTHON=./broken");
  CHECK(broken["python"]["why"] == "it ended with exit code 1: ImportError: no encodings");
  CHECK(says(remedy_of(broken, "PyTorch"), "see what `./broken -c 1` says, or name a Python"));
  write_script(program, "a python",
               "echo '{\"python\": \"3.12.1\"}'; "
               "echo \"{\\\"trouble\\\": \\\"ModuleNotFoundError: No module named 'torch'\\\"}\"");
  CHECK(says(remedy_of(examined(program, "FSDP_PLAN_PYTHON='./a python'"), "PyTorch"),
             "`'./a python' -m pip install torch`, or name a Python"));
  write_script(program, "old", "echo '{\"python\": \"3.12.1\"}'; echo '{\"trouble\": \"OSError: libtorch.so: no\"}'");
  CHECK(says(remedy_of(examined(program, "FSDP_PLAN_PYTHON=./old"), "PyTorch"), "./old -c 'import torch'` says"));
}

TEST_CASE("a Python that sleeps, and all that it started, ends at the time limit") {
  const Program program;
  write_script(program, "python", sleeping(1) + " & " + sleeping(1));
  const auto begin = std::chrono::steady_clock::now();
  const json e = examined_briefly(program, "FSDP_PLAN_PYTHON=./python");
  // Seven trials at most, one after the other: 4 s each, and 4 s to end.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  CHECK(says(e["python"]["why"], "did not end within 4 s"));
  CHECK_FALSE(runs_somewhere(sleeping(1)));
}

TEST_CASE("doctor that is interrupted ends what it started, and itself by the signal") {
  const Program program;
  write_script(program, "python", sleeping(2) + " & " + sleeping(2));
  write_launcher(program, "ls tmp > plans.txt; touch started; " + sleeping(2));
  for (const auto& [signal, code] : {std::pair<std::string, std::string>{"INT", "130"}, {"TERM", "143"}}) {
    const Answer answer = program.run(
        "mkdir -p tmp; rm -f started\n"
        "TMPDIR=$PWD/tmp FSDP_PLAN_PYTHON=./python PATH=\"$PWD:$PATH\" env --default-signal=INT" +
        kPatient + "> out.txt &\n" + await("started") + "kill -" + signal + " $!; wait $!; echo $?; ls tmp | wc -l");
    CHECK(says(program.text_of("plans.txt"), "fsdp-plan-doctor-"));
    CHECK(program.text_of("out.txt").empty());
    CHECK(answer.out == code + "\n0\n");  // and its plans are gone
    CHECK_FALSE(runs_somewhere(sleeping(2)));
  }
}

TEST_CASE("doctor under nohup goes on through the signals that it ignores") {
  const Program program;
  write_launcher(program, "touch started\n" + await("go") + "exit 7");
  const Answer answer = program.run("trap '' HUP\n" + kNoPython + " PATH=\"$PWD:$PATH\"" + kPatient + "&\n" +
                                    await("started") + "kill -HUP $!; sleep 0.2; touch go; wait $!");
  CHECK(answer.code == 0);
  CHECK(says(backend(document_of(answer), "mpi")["said"], "ended with exit code 7"));
}

TEST_CASE("a Python that ignores SIGTERM and prints without end ends, too") {
  const Program program;
  write_script(program, "python", "trap '' TERM; while :; do echo 98764.5; done");
  const json e = examined_briefly(program, "FSDP_PLAN_PYTHON=./python");
  CHECK(says(e["python"]["why"], "did not end within 4 s"));
  CHECK_FALSE(runs_somewhere(program.work().string() + "/./python"));
}

TEST_CASE("a Python that dies, or is none, is said so") {
  const Program program;
  write_script(program, "dies", "kill -SEGV $$");
  CHECK(says(examined(program, "FSDP_PLAN_PYTHON=./dies")["python"]["why"], "signal 11"));
  write_script(program, "other", "echo '[1]'; echo hello; echo '{\"torch\": 3}'");
  const json other = examined(program, "FSDP_PLAN_PYTHON=./other")["python"];
  CHECK(says(other["why"], "no Python 3"));
  CHECK(other["torch"].is_null());
  write_script(program, "half", "echo '{\"python\": \"3.12.1\"}'; " + sleeping(3));
  const json half = examined_briefly(program, "FSDP_PLAN_PYTHON=./half")["python"];
  CHECK(half["version"] == "3.12.1");
  CHECK(says(half["why"], "importing torch"));
}

TEST_CASE("the driver's answer is what the driver says") {
  const Program program;
  const std::string driver = kNoPython + " LD_LIBRARY_PATH='" FSDP_FAKE_DRIVER_FOLDER "' FSDP_FAKE_DRIVER=";
  const json two = examined(program, driver + "two")["nvidia"];
  CHECK(two["driver_cuda"] == "12.4.0");
  REQUIRE(two["gpus"].size() == 2);
  CHECK(two["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3");
  CHECK(two["gpus"][0]["memory_bytes"] == std::int64_t{80} << 30);
  CHECK(two["gpus"][0]["multiprocessors"] == 132);
  CHECK(two["gpus"][0]["compute_capability"] == "9.0");
  CHECK(two["gpus"][1]["compute_capability"] == "8.9");
  const json none = examined(program, driver + "none")["nvidia"];
  CHECK(none["gpus"].empty());
  CHECK(says(none["why"], "CUDA_ERROR_NO_DEVICE: no CUDA-capable device"));
  CHECK(says(examined(program, driver + "mismatch")["nvidia"]["why"], "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"));
}

TEST_CASE("a driver that hangs or crashes takes nothing with it") {
  const Program program;
  const std::string driver = kNoPython + " LD_LIBRARY_PATH='" FSDP_FAKE_DRIVER_FOLDER "' FSDP_FAKE_DRIVER=";
  const json hangs = examined_briefly(program, driver + "hang");
  CHECK(says(hangs["nvidia"]["why"], "did not end within 4 s"));
  const json host = backend(hangs, "host");  // tried all the same
  CHECK_MESSAGE((host["works"] == true || says(host["said"], "2 threads: did not end within 4 s")), host.dump());
  const json crashes = examined(program, driver + "crash");
  CHECK(says(crashes["nvidia"]["why"], "signal 11"));
  CHECK(backend(crashes, "host")["works"] == true);
}

TEST_CASE("a launcher that hangs, refuses, or starts processes that do not know each other makes no mpi backend") {
  const Program program;
  const std::string before = kNoPython + " PATH=\"$PWD:$PATH\"";
  const auto mpi = [&](const std::string& script, bool briefly = false) {
    write_launcher(program, script);
    const json e = briefly ? examined_briefly(program, before) : examined(program, before);
    CHECK(e["mpi_launcher"]["version"] == "made-up 1.0");
    const json result = backend(e, "mpi");
    CHECK(result["works"] == false);
    CHECK(is_missing(e, "backend mpi"));
    return result;
  };
  CHECK(says(mpi(sleeping(4), true)["said"], "did not end within 4 s"));
  CHECK(says(mpi("echo; echo '----'; echo 'no such cluster' >&2; exit 7")["said"], "no such cluster"));
  CHECK(says(mpi("exit 0")["said"], "printed no measurement"));
  CHECK(says(mpi("echo '{\"losses\": [1, 2], \"ranks\": [0]}'")["said"], "1 of 2 ranks"));
  const std::string alone = mpi("shift 2; \"$@\"")["said"].get<std::string>();  // one process, without a launch
  CHECK_MESSAGE((says(alone, "mpi is not built in") || says(alone, "= 2 ranks, but 1 process was started")), alone);
}

TEST_CASE("where nothing can run the exit code is 1, with the reason and the remedy") {
  const Program program;
  const json kernels = examined(program, kNoPython + " FSDP_PLAN_INSTRUCTIONS=sse9", "", 1);
  CHECK(kernels["host"]["instructions"].is_null());
  CHECK(says(backend(kernels, "host")["said"], "sse9"));
  CHECK(is_missing(kernels, "backend host"));
  const json folder = examined(program, kNoPython + " TMPDIR=/nowhere", "", 1);
  CHECK(says(backend(folder, "host")["said"], "no folder for temporary files"));
  CHECK(says(backend(folder, "host")["remedy"], "TMPDIR"));
}

TEST_CASE("costs of this machine are told from those of another, and from what are none") {
  const Program program;
  REQUIRE(program.run("fsdp-plan calibrate --backend host --ranks 2 --budget 1s -o costs.json").code == 0);
  json e = examined(program, kNoPython);
  CHECK(e["costs"]["of_this_machine"] == true);
  CHECK_FALSE(is_missing(e, "costs of this machine"));
  REQUIRE(program.run("sed 's/kernels [^,]*,/kernels of another,/' costs.json > other.json").code == 0);
  e = examined(program, kNoPython, "--costs other.json");
  CHECK(e["costs"]["of_this_machine"] == false);
  CHECK(is_missing(e, "costs of this machine"));
  REQUIRE(program.run("echo '{' > costs.json").code == 0);
  CHECK(says(examined(program, kNoPython)["costs"]["why"], "costs.json"));
  CHECK(program.run("fsdp-plan doctor --costs costs.json").code == 2);  // named, so it is bad input
}

TEST_CASE("doctor is not for the processes of a launch, and refuses a time limit that is none") {
  const Program program;
  CHECK(says(program.run("OMPI_COMM_WORLD_SIZE=2 fsdp-plan doctor").err, "start it without the launcher"));
  const std::string example = program.run("fsdp-plan doctor --help | grep -o -e '--time-limit [0-9][0-9a-z]*'").out;
  CHECK(says(example, "--time-limit"));
  CHECK(program.run(kNoPython + " fsdp-plan doctor " + example).code == 0);
  for (const char* limit : {"0s", "2h", "-1s", "soon", "nan"})
    CHECK(program.run(std::string("fsdp-plan doctor --time-limit ") + limit).code == 2);
}
