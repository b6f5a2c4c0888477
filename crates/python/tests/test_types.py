"""The stubs match the module."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev=0", "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)


def test_package_and_its_use_are_strictly_typed(tmp_path):
    checked = mypy("mypy", "--strict", "--cache-dir", str(tmp_path), "python/fipsee", "tests/typed_use.py", "../../bench/python/bench.py")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_wrong_use_is_found_in_the_lines_that_are_wrong(tmp_path):
    wrong = tmp_path / "wrong.py"
    lines = ["import fipsee", "disk = fipsee.open('a')"]
    bad = ["disk.read('0', 1)", "disk.write(0, 'text')", "fipsee.open('a', wait='hard')", "x: str = disk.read(0, 1)", "disk.nothing"]
    wrong.write_text("\n".join(lines + bad))
    checked = mypy("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(wrong))
    found = [f"wrong.py:{number}: error" for number in range(1, 8) if f"wrong.py:{number}: error" in checked.stdout]
    assert found == [f"wrong.py:{number}: error" for number in range(3, 8)], checked.stdout


NOT_AT_RUN_TIME = """
fipsee._fipsee.(Claim|Data|Offsets|Wait)
# Python before 3.12 does not show this for a class with the buffer protocol.
fipsee._fipsee.Memory.__(buffer|release_buffer)__
"""


def test_stubs_have_what_the_module_has(tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text(NOT_AT_RUN_TIME)
    checked = mypy("mypy.stubtest", "fipsee", "--allowlist", str(allowed), "--ignore-unused-allowlist")
    assert checked.returncode == 0, checked.stdout + checked.stderr
