"""Every shipped case compiles clean for every architecture, and what does not is refused."""

import importlib
import json
import re
import sys
from dataclasses import replace

import pytest

from kernels.binary import Binary
from kernels.compile import COLUMNS, compile_all, main, ops, print_table
from kernels.compile_case import Compiled
from kernels.occupancy import ARCHITECTURES

pytestmark = pytest.mark.xdist_group("compile")  # one worker: it starts two processes itself
TOYS = "tests.kernels.toys"


def test_every_shipped_case_compiles_clean():
    found = compile_all()
    assert [one.fault for one in found if one.fault and one.shipped] == []
    with_cases = {
        name
        for name in ops("kernels")
        if hasattr(importlib.import_module(f"kernels.{name}"), "cases")
    }
    shipped = {(one.op, one.arch) for one in found if one.shipped}
    assert len(shipped) == len(with_cases) * len(ARCHITECTURES)


def test_shipped_cases_with_faults_fail_with_one_line_each(capsys):
    assert main(["--package", TOYS, "--only", "faulty", "--arch", "sm_90"]) == 1
    said = capsys.readouterr()
    assert {"long row", "large", "odd"} <= set(re.split(r"\s{2,}", said.out))
    spills, large, odd = said.err.splitlines()
    assert re.fullmatch(
        r"error: faulty long row on sm_90 spills \d+ bytes a thread \(40 registers\): "
        "use smaller blocks or more warps",
        spills,
    )
    assert large == (
        "error: faulty large on sm_90 needs 327680 bytes of shared memory, H100 gives a block "
        "232448: use smaller blocks or fewer stages"
    )
    assert odd == "error: faulty odd on sm_90 does not compile: arange's range must be a power of 2"


def test_what_is_only_looked_at_may_spill(capsys):
    arguments = ["--package", TOYS, "--only", "tiles", "--arch", "sm_80", "--sweep", "--json"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    assert [row["variant"] for row in rows] == ["dot", "add", "long row"]
    assert rows[-1]["binary"]["spill_store_bytes"] > 0
    assert said.err == ""


def test_without_rich_the_table_is_plain_text(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    binary = Binary(40, 8, 4, 8, 0, {"tensor_core": 3}, {"HGMMA": 3})
    one = Compiled("op", "case", "sm_90", True, {}, {}, 4, 3, 128, 16, 0, binary)
    print_table([one, replace(one, binary=None, error="no")])
    head, good, bad = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(COLUMNS).split()
    assert good.split() == [
        "op",
        "case",
        "sm_90",
        "40",
        "12",
        "16",
        "12",
        "registers",
        "3",
        "HGMMA",
    ]
    assert bad.split() == ["op", "case", "sm_90", "-", "-", "-", "-", "does", "not", "compile", "-"]


def test_a_stack_without_loads_and_stores_is_no_spill():
    binary = Binary(40, 8, 0, 0, 0, {}, {})
    one = Compiled("op", "case", "sm_90", True, {}, {}, 4, 3, 128, 16, 0, binary)
    assert one.fault == ""
    assert one.occupancy.blocks == 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "no op 'nothing'; kernels has "),
        (["--arch", "sm_70"], "no architecture 'sm_70'; there are sm_80, sm_90, sm_100, gfx942"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


def test_an_op_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_ops").mkdir()
    (tmp_path / "broken_ops" / "__init__.py").touch()
    (tmp_path / "broken_ops" / "op.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert main(["--package", "broken_ops"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "error: compiling failed: ZeroDivisionError: division by zero"
