// The program on terminals: widths, styles, what shells complete, and the examples of every help.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/lines.h"

using fsdp::testing::Answer;
using fsdp::testing::lines_of;
using fsdp::testing::Program;

namespace {

std::size_t columns_of(const std::string& line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

bool is_rule(const std::string& line) {
  return line.find("---") != std::string::npos && line.find_first_not_of("- ") == std::string::npos;
}

// Of the lines of tables: a rule of dashes, the lines before and behind it up to an empty line.
std::size_t widest_table_line(const std::string& text) {
  const auto lines = lines_of(text);
  std::size_t widest = 0;
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (is_rule(lines[i]))
      for (std::size_t k = i; k < lines.size() && !lines[k].empty(); ++k)
        widest = std::max(widest, columns_of(lines[k]));
  return widest;
}

bool has(const Program& program, const std::string& tool) { return program.run("command -v " + tool).code == 0; }

// What "Examples:" lists.
std::vector<std::string> examples_of(const Program& program, const std::string& command) {
  const Answer help = program.run("fsdp-plan " + command + " --help");
  CHECK(help.code == 0);
  std::vector<std::string> examples;
  bool inside = false;
  for (const std::string& line : lines_of(help.out)) {
    if (inside) examples.push_back(line.substr(2));
    inside = inside || line == "Examples:";
  }
  return examples;
}

const std::string kPlan =
    "fsdp-plan plan --model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8k --micro-batch 1 --search uniform";

}  // namespace

TEST_CASE("tables, charts and helps fit the terminal, and are as wide as they like in a file") {
  const Program program;
  CHECK(widest_table_line(program.run("unset COLUMNS; " + kPlan).out) > 100);
  for (const int width : {60, 80, 100}) {
    CAPTURE(width);
    const std::string columns = "COLUMNS=" + std::to_string(width) + " ";
    const Answer plan = program.run(columns + kPlan);
    CHECK(widest_table_line(plan.out) <= static_cast<std::size_t>(width));
    CHECK(plan.out.find("recomputation") != std::string::npos);  // lines are broken between words
    const Answer simulated =
        program.run(columns + "fsdp-plan simulate --model llama3-8b --cluster dgx-h100 --seq-len 8k");
    for (const std::string& line : lines_of(simulated.out))
      if (line.find('|') != std::string::npos || line.find("[C") == 0)
        CHECK_MESSAGE(columns_of(line) <= static_cast<std::size_t>(width), line);
    for (const std::string& line : lines_of(program.run(columns + "fsdp-plan help simulate").out)) {
      if (line.find("fsdp-plan ") != std::string::npos) continue;  // examples are to be copied
      CHECK_MESSAGE(columns_of(line) <= static_cast<std::size_t>(std::max(width, 60)), line);
    }
  }
}

TEST_CASE("styles and progress: a terminal has them, NO_COLOR and TERM=dumb have none") {
  const Program program;
  if (!has(program, "script")) {
    MESSAGE("no `script` here: not on a terminal");
    return;
  }
  const auto on_terminal = [&](const std::string& before) {
    return program.run(before + " script -qec '" + kPlan + "' /dev/null").out;
  };
  CHECK(on_terminal("unset NO_COLOR; TERM=xterm").find("\033[1m") != std::string::npos);
  CHECK(on_terminal("unset NO_COLOR; TERM=xterm").find("\033[K") != std::string::npos);
  CHECK(on_terminal("NO_COLOR=1 TERM=xterm").find("\033[1m") == std::string::npos);
  CHECK(on_terminal("NO_COLOR=1 TERM=xterm").find("\033[K") != std::string::npos);  // progress has no color
  CHECK(on_terminal("unset NO_COLOR; TERM=dumb").find('\033') == std::string::npos);
  CHECK(program.run("TERM=xterm " + kPlan).out.find('\033') == std::string::npos);  // no terminal
}

TEST_CASE("a rank that mpirun started has no terminal: the launcher's own stands between") {
  const Program program;
  if (!has(program, "script")) {
    MESSAGE("no `script` here: not on a terminal");
    return;
  }
  const auto on_terminal = [&](const std::string& rank) {
    return program.run("unset NO_COLOR; TERM=xterm " + rank + " script -qec '" + kPlan + "' /dev/null").out;
  };
  CHECK(on_terminal("").find('\033') != std::string::npos);
  CHECK(on_terminal("OMPI_COMM_WORLD_RANK=0").find('\033') == std::string::npos);
}

TEST_CASE("colours and block characters are for terminals that show them") {
  const Program program;
  if (!has(program, "script")) {
    MESSAGE("no `script` here: not on a terminal");
    return;
  }
  const std::string call = "fsdp-plan simulate --model llama3-8b --cluster dgx-h100 --seq-len 8k";
  const auto on_terminal = [&](const std::string& before, const std::string& more = "") {
    return program.run(before + " script -qec '" + call + more + "' /dev/null").out;
  };
  const std::string shown = "unset NO_COLOR; TERM=xterm LC_ALL=C.UTF-8", coloured = on_terminal(shown);
  CHECK(coloured.find("\033[33mTight\033[0m") != std::string::npos);
  CHECK(on_terminal(shown, " --memory-limit 20GiB").find("\033[31mDoes not fit\033[0m") != std::string::npos);
  CHECK(on_terminal(shown, " --activation-checkpointing full").find("\033[32mFits\033[0m") != std::string::npos);
  CHECK(coloured.find("\033[34mC") != std::string::npos);       // compute in the bar of time
  CHECK(coloured.find("\033[34m\u2588") != std::string::npos);  // memory
  const std::string plain = on_terminal("NO_COLOR=1 TERM=xterm LC_ALL=C.UTF-8");
  CHECK(plain.find("\033[3") == std::string::npos);
  CHECK(plain.find("\u2588") != std::string::npos);
  for (const char* locale :
       {"LC_ALL=C LANG=C.UTF-8", "LC_ALL= LC_CTYPE= LANG=de_DE.ISO-8859-1", "LC_ALL= LC_CTYPE= LANG="}) {
    const std::string ascii = on_terminal("NO_COLOR=1 TERM=xterm " + std::string(locale));
    CHECK(std::all_of(ascii.begin(), ascii.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
    CHECK(ascii.find("####") != std::string::npos);
  }
  const std::string file = program.run("TERM=xterm LC_ALL=C " + call).out;  // not a terminal: text in UTF-8
  CHECK(file.find('\033') == std::string::npos);
  CHECK(file.find("\u2588") != std::string::npos);
}

TEST_CASE("what the program offers to shells") {
  const Program program;
  const auto offered = [&](const std::string& words) {
    const auto lines = lines_of(program.run("fsdp-plan __complete " + words).out);
    return std::set<std::string>(lines.begin(), lines.end());
  };
  CHECK(offered("sim") == std::set<std::string>{"simulate"});
  CHECK(offered("help s") == std::set<std::string>{"show", "simulate"});
  CHECK(offered("show ''") == std::set<std::string>{"model", "cluster", "plan", "step", "trace"});
  CHECK(offered("plan --mod") == std::set<std::string>{"--model"});
  CHECK(offered("plan --model llama3-") == std::set<std::string>{"llama3-8b", "llama3-70b"});
  CHECK(offered("plan --cluster dgx-h").contains("dgx-h100"));
  CHECK(offered("plan --implementation tor").contains("torchtitan"));
  CHECK(offered("plan --param-dtype ''") == std::set<std::string>{"fp64", "fp32", "bf16", "fp16"});
  CHECK(offered("plan --dialect ''") == std::set<std::string>{"fsdp2", "fsdp1", "ddp"});
  CHECK(offered("plan --optimizer ''") == std::set<std::string>{"adamw", "adamw-8bit", "sgd"});
  CHECK(offered("plan --offload ''") == std::set<std::string>{"true", "false"});
  CHECK(offered("plan --offload --glo") == std::set<std::string>{"--global-batch", "--global-batch-tokens"});
  CHECK(offered("plan --json=b") == std::set<std::string>{"--json=brief"});
  CHECK(offered("plan --json = b") == std::set<std::string>{"brief"});
  CHECK(offered("plan --emit ''") == std::set<std::string>{"pytorch", "accelerate", "torchtitan", "torchtitan-args",
                                                           "torchtitan-toml", "transformers", "automodel", "lightning",
                                                           "composer", "deepspeed"});
  CHECK(offered("plan --target ''") == std::set<std::string>{"pytorch", "accelerate", "torchtitan", "torchtitan-args",
                                                             "torchtitan-toml", "transformers", "automodel",
                                                             "lightning", "composer"});
  CHECK(offered("plan -o pl").empty());  // a file
  CHECK(offered("validate a.json ''").empty());
  CHECK(offered("show model --costs gpt").contains("gpt2"));
  CHECK(offered("completion ''") == std::set<std::string>{"bash", "zsh", "fish"});
}

TEST_CASE("bash, zsh and fish complete with what the program offers") {
  const Program program;
  for (const std::string shell : {"bash", "zsh", "fish"})
    CHECK(program.run("fsdp-plan completion " + shell).out.find("__complete") != std::string::npos);
  const Answer bash = program.run(
      "cat > t.bash <<'END'\neval \"$(fsdp-plan completion bash)\"\n"
      "COMP_WORDS=(fsdp-plan show model llama3-); COMP_CWORD=3; _fsdp_plan fsdp-plan; echo \"${COMPREPLY[@]}\"\n"
      "COMP_WORDS=(fsdp-plan plan --json = b); COMP_CWORD=4; _fsdp_plan fsdp-plan; echo \"${COMPREPLY[@]}\"\n"
      "COMP_WORDS=(fsdp-plan show ''); COMP_CWORD=2; _fsdp_plan fsdp-plan; echo \"${COMPREPLY[@]}\"\n"
      "complete -p fsdp-plan\nEND\nbash t.bash");
  CHECK_MESSAGE(bash.out.find("llama3-70b llama3-8b\nbrief\nmodel cluster plan step trace\n") == 0, bash.out, bash.err);
  CHECK(bash.out.find("-F _fsdp_plan") != std::string::npos);
  if (has(program, "fish")) {
    const Answer fish = program.run(
        "HOME=$PWD fish -c 'fsdp-plan completion fish | source; complete -C \"fsdp-plan show model llama3-\"; complete "
        "-C \"fsdp-plan sim\"; complete -C \"fsdp-plan show \"'");
    const auto found = lines_of(fish.out);
    const std::set<std::string> wanted = {"llama3-8b", "llama3-70b", "simulate", "cluster", "model", "plan", "step"};
    const bool same = std::set<std::string>(found.begin(), found.end()) == wanted;
    CHECK_MESSAGE(same, fish.out, fish.err);
  }
  if (has(program, "zsh")) {
    // Without a line editor: compadd and compdef are stand-ins that print.
    const Answer zsh = program.run(
        "cat > t.zsh <<'END'\ncompdef() { }\ncompadd() { shift; print -r -- \"$@\" }\n_files() { print files }\n"
        "eval \"$(fsdp-plan completion zsh)\"\n"
        "words=(fsdp-plan show model llama3-); CURRENT=4; _fsdp_plan\n"
        "words=(fsdp-plan show ''); CURRENT=3; _fsdp_plan\n"
        "words=(fsdp-plan plan -o x); CURRENT=4; _fsdp_plan\nEND\nzsh -f t.zsh");
    CHECK_MESSAGE(zsh.out.find("llama3-70b llama3-8b\nmodel cluster plan step trace\nfiles\n") == 0, zsh.out, zsh.err);
  }
}

TEST_CASE("every help has examples, and they are command lines that the program takes") {
  const Program program;
  for (const char* command :
       {"", "plan", "simulate", "run", "validate", "calibrate", "show model", "show cluster", "show plan", "show step",
        "accuracy", "checkpoint show", "checkpoint verify", "checkpoint export", "completion"}) {
    CAPTURE(command);
    const auto examples = examples_of(program, command);
    CHECK(!examples.empty());
    for (const std::string& example : examples) {
      CAPTURE(example);
      CHECK(example.find("fsdp-plan ") != std::string::npos);
      // Files that are not there are refused (2) in other words than a command line that is not understood. That is
      // said at once: what works longer has understood.
      const Answer answer = program.run("timeout 1 bash -c '" + example + "' < /dev/null");
      CHECK_MESSAGE(answer.err.find("--help` lists what it takes") == std::string::npos, answer.err);
      CHECK_MESSAGE(answer.err.find("is not a command") == std::string::npos, answer.err);
    }
  }
}
