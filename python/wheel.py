#!/usr/bin/env python3
"""Packs a wheel of the Python package and a program that is built already, for tests: `pip install .` compiles it.

    python3 python/wheel.py build/release/fsdp-plan FOLDER      prints the path of the wheel
"""
import base64
import hashlib
import pathlib
import re
import stat
import sys
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = (HERE.parent / "pyproject.toml").read_text()
VERSION = re.search(r'^version = "([0-9.]+)"', PROJECT, re.MULTILINE).group(1)


def value(key):
    """A text of pyproject.toml."""
    return re.search(rf'^{re.escape(key)} = "(.*)"$', PROJECT, re.MULTILINE).group(1)


def pack(program, folder):
    if f"project(fsdp_plan VERSION {VERSION} " not in (HERE.parent / "CMakeLists.txt").read_text():
        raise SystemExit(f"pyproject.toml has version {VERSION}, and CMakeLists.txt another")
    tag = "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())
    info = f"fsdp_plan-{VERSION}.dist-info"
    files = {str(f.relative_to(HERE)): f.read_bytes() for f in sorted((HERE / "fsdp_plan").rglob("*.py"))}
    files["fsdp_plan/bin/fsdp-plan"] = pathlib.Path(program).read_bytes()
    files[f"{info}/METADATA"] = (f"Metadata-Version: 2.1\nName: {value('name')}\nVersion: {VERSION}\n"
                                 f"Summary: {value('description')}\n"
                                 f"Requires-Python: {value('requires-python')}\n").encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\nfsdp-plan = {value('fsdp-plan')}\n".encode()
    hashes = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
              for name, data in files.items()}
    rows = [f"{name},sha256={hashes[name]},{len(data)}" for name, data in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(rows) + "\n").encode()
    wheel = pathlib.Path(folder) / f"fsdp_plan-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | (0o755 if "/bin/" in name else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


if __name__ == "__main__":
    print(pack(*sys.argv[1:]))
