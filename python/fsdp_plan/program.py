"""The program that the wheel carries: where it is, and its answers as Python values."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

from fsdp_plan.errors import PlanError

NAME = "fsdp-plan.exe" if os.name == "nt" else "fsdp-plan"


def path():
    """The program: FSDP_PLAN_PROGRAM, or the one in this package, or one on PATH that is not this package's script."""
    if named := os.environ.get("FSDP_PLAN_PROGRAM"):
        if not shutil.which(named):
            raise PlanError(f"FSDP_PLAN_PROGRAM: '{named}' cannot be run; name the program, or unset the variable")
        return named
    carried = pathlib.Path(__file__).parent / "bin" / NAME
    if carried.exists():
        return str(carried)
    found = shutil.which(NAME)
    if found and open(found, "rb").read(2) != b"#!":
        return found
    raise PlanError("the program fsdp-plan is not in this package: install the wheel (pip install .), or set "
                    "FSDP_PLAN_PROGRAM to a program that was built")


def ask(*arguments):
    """What the program prints for these arguments. Its refusals are PlanErrors, in its own words."""
    done = subprocess.run([path(), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise PlanError(done.stderr.strip() or f"fsdp-plan {' '.join(map(str, arguments))}: exit {done.returncode}")
    return done.stdout


def ask_json(*arguments):
    return json.loads(ask(*arguments, "--json"))


def main():
    """Becomes the program; `export` alone is this package's own."""
    if sys.argv[1:2] == ["export"]:
        from fsdp_plan.tracing import command
        return command.main(sys.argv[2:])
    try:
        program = path()
    except PlanError as error:
        raise SystemExit(f"fsdp_plan: {error}") from None
    os.execv(program, [NAME, *sys.argv[1:]])
