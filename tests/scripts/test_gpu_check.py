"""The checks for a GPU, on a machine that has none: each part runs, and fails where it should."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmbm_torch.kernels.matrix_bp import choosing

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import cycle_model
import gpu_check

CPU = torch.device("cpu")
WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@WITHOUT
def test_without_a_card_it_refuses_and_writes_nothing(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        gpu_check.main(["--output", str(tmp_path / "run"), "--results", str(tmp_path / "results")])
    assert ended.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_with_a_card_every_check_has_a_row_in_a_table_of_its_name(tmp_path, monkeypatch, capsys):
    def broken(device):
        yield {"what": "first", "result": "passed"}
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(gpu_check, "CHECKS", {"csr": gpu_check.csr, "kernels": broken, "tests": broken})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "current_device", lambda: (CPU, "NVIDIA H200 (96 GB)"))
    arguments = ["--output", str(tmp_path / "run"), "--results", str(tmp_path / "results"), "--skip", "tests"]
    assert gpu_check.main(arguments) == 1
    kept = tmp_path / "results" / "gpu_check_nvidia_h200_96_gb.csv"
    assert str(kept) in capsys.readouterr().out
    rows = list(csv.DictReader(kept.read_text().splitlines()))
    assert {row["device"] for row in rows} == {"NVIDIA H200 (96 GB)"}
    assert {row["result"] for row in rows if row["check"] == "csr"} == {"passed"}
    last = [row for row in rows if row["check"] == "kernels"]
    assert [row["result"] for row in last] == ["passed", "failed"]
    assert "illegal memory access" in last[1]["note"]
    assert "tests" not in {row["check"] for row in rows}


def test_sparse_features_are_compared_forward_and_backward(monkeypatch):
    rows = list(gpu_check.csr(CPU))
    assert {row["what"] for row in rows} > {"scores"}
    assert all(row["result"] == "passed" for row in rows)
    right = gpu_check._score_and_gradients
    elsewhere = torch.device("meta")

    def wrong(device, dense, labels):
        # A device that scores well and differentiates badly.
        found = right(CPU, dense, labels)
        return {name: value + (device == elsewhere and name != "scores") for name, value in found.items()}

    monkeypatch.setattr(gpu_check, "_score_and_gradients", wrong)
    results = {row["what"]: row["result"] for row in gpu_check.csr(elsewhere)}
    assert results.pop("scores") == "passed"
    assert set(results.values()) == {"failed"}


def test_searches_are_compared_with_the_cpu_after_their_tests(monkeypatch):
    first, second = gpu_check.searched(CPU, 200, 6, -2.0)
    assert (first["result"], first["value"]) == ("passed", 0)
    assert (second["result"], second["value"] > 0) == ("measured", True)
    assert "nodes an instance" in second["note"]
    right = gpu_check.branch_and_bound.decode_hinge

    def wrong(energy, **options):
        # Of the whole batch, which the device is given.
        found = right(energy, **options)
        return found if len(found.labels) < 200 else replace(found, labels=1 - found.labels)

    monkeypatch.setattr(gpu_check.branch_and_bound, "decode_hinge", wrong)
    assert next(gpu_check.searched(CPU, 200, 6, -2.0))["result"] == "failed"
    monkeypatch.setattr(gpu_check, "ran", lambda *arguments, **options: {"result": "failed"})
    assert [row["result"] for row in gpu_check.search(CPU)] == ["failed"]


def test_a_command_that_never_ends_is_ended():
    with pytest.raises(subprocess.TimeoutExpired):
        gpu_check.ran("c", [sys.executable, "-S", "-c", "while True: pass"], seconds=0.2)


def test_nan_is_within_no_tolerance():
    assert gpu_check.within("beliefs", float("nan"), 1.0)["result"] == "failed"


def test_a_command_is_passed_by_what_it_ends_with():
    python = [sys.executable, "-S", "-c"]
    passed = gpu_check.ran("a", [*python, "print('12 passed'); print()"])
    assert (passed["result"], passed["note"]) == ("passed", "12 passed")
    failed = gpu_check.ran(
        "b", [*python, "print('x SUMMARY: 1 error\\nlast'); raise SystemExit(1)"], r".*SUMMARY.*"
    )
    assert (failed["result"], failed["note"]) == ("failed", "x SUMMARY: 1 error")
    assert "3" in gpu_check.ran("c", [*python, "raise SystemExit(3)"])["note"]


def test_the_sanitizer_is_run_where_it_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = gpu_check.sanitizer(CPU)
    assert (row["result"], "toolkit" in row["note"]) == ("missing", True)
    program = tmp_path / "compute-sanitizer"
    program.write_text('#!/bin/sh\necho "========= $2 SUMMARY: 0 errors"\n[ "$2" != racecheck ]\n')
    program.chmod(0o755)
    rows = {row["what"]: row for row in gpu_check.sanitizer(CPU)}
    assert {what: row["result"] for what, row in rows.items()} == {
        "memcheck": "passed",
        "racecheck": "failed",
        "synccheck": "passed",
    }
    assert rows["racecheck"]["note"] == "========= racecheck SUMMARY: 0 errors"


def test_benchmarks_that_take_a_device_are_found(tmp_path):
    (tmp_path / "one.py").write_text('parser.add_argument("--device")')
    (tmp_path / "other.py").write_text("parser.add_argument('--repeats')")
    assert [path.stem for path in gpu_check.taking_device(tmp_path)] == ["one"]


@pytest.fixture
def plain(monkeypatch) -> None:
    """Without a minute of compilation."""
    monkeypatch.setattr(choosing, "kernel", lambda device: choosing.plain.propagate)


@pytest.mark.usefixtures("plain")
def test_kernels_are_compared_with_the_truth_with_each_other_and_with_the_model(monkeypatch):
    right = gpu_check.matrix_bp.marginals
    wrong = {"by": 0.0}

    def marginals(energy, backend="auto", **options):
        result = right(energy, **options)
        if backend == "resident":
            result.visible.add_(wrong["by"])
        return result

    monkeypatch.setattr(gpu_check.matrix_bp, "marginals", marginals)
    sizes = (CPU, cycle_model.H200, 2, 12, 7, 3)
    rows = {row["what"]: row for row in gpu_check.compared(*sizes)}
    assert len(rows) == 7
    assert {row["result"] for row in rows.values()} == {"passed", "measured"}
    for row in rows.values():
        if row["result"] == "measured":
            assert "times the model's floor" in row["note"]
            assert 0 < row["value"] < 10
    wrong["by"] = 1e-4
    failed = {row["what"] for row in gpu_check.compared(*sizes) if row["result"] == "failed"}
    assert failed == {"resident, 2 x 12 x 7, 3 iterations: visible beliefs", "both kernels, 2 x 12 x 7"}


@pytest.mark.usefixtures("plain")
def test_a_kernel_that_does_not_run_is_a_row_of_its_own():
    rows = list(gpu_check.compared(CPU, cycle_model.H200, 2, 12, 7, 3))
    (refused,) = (row for row in rows if row["result"] == "failed")
    assert refused["what"].startswith("resident")
    assert "CUDA device" in refused["note"]


def test_the_model_is_bound_by_what_it_should_be():
    device, sizes = cycle_model.H200, (64, 784, 256, 20)
    streaming, resident = cycle_model.streaming(device, *sizes), cycle_model.resident(device, *sizes)
    assert streaming.memory == 8 * 64 * 784 * 256 * 20 / device.bandwidth
    assert streaming.seconds == streaming.issue
    # 32 of 1024 columns to a cycle of the four issue slots, of 132 multiprocessors.
    assert streaming.issue == pytest.approx(64 * 1024 * 256 * 20 * 45.8 / 128 / 132 / device.clock)
    assert resident.seconds == resident.issue
    assert resident.memory < 1e-2 * streaming.memory
    # Sixteen clusters: the seventeenth instance waits for another round.
    assert (
        cycle_model.resident(device, 16, *sizes[1:]).issue
        == cycle_model.resident(device, 1, *sizes[1:]).issue
    )
    assert (
        cycle_model.resident(device, 17, *sizes[1:]).issue
        == 2 * cycle_model.resident(device, 16, *sizes[1:]).issue
    )


def test_bandwidth_counts_what_is_read_and_written():
    assert 0 < gpu_check.measured_bandwidth(CPU, 1000) < 1e13
