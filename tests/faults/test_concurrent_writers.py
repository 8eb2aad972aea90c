"""Several writers of one path: every read is whole, and where only one may write exactly one does."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
import torch
from hydra import compose, initialize_config_dir
from test_kills import QUIET, ROUTES

from lmbm_torch import files
from lmbm_torch.cli import jobs
from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.files import UNFINISHED, replacing, write_text
from lmbm_torch.persistence import archives
from lmbm_torch.training import runs


def test_the_later_of_two_writers_replaces_the_whole_file(tmp_path):
    file = tmp_path / "notes"
    with replacing(file) as late:
        late.write(b"late" * 10_000)
        with replacing(file) as early:
            early.write(b"early")
        assert file.read_bytes() == b"early"
    assert file.read_bytes() == b"late" * 10_000
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("links", [True, False])
def test_the_later_of_two_new_writers_is_told_even_in_the_last_instant(tmp_path, monkeypatch, links):
    file = tmp_path / "notes"
    if not links:

        def link(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr("os.link", link)
    monkeypatch.setattr(files, "check_free", lambda *_: None)

    def write_twice(stream):
        stream.write(b"late")
        write_text(file, "early", "x")

    with pytest.raises(FileExistsError, match="notes"), replacing(file, "x") as late:
        write_twice(late)
    assert file.read_text() == "early"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_writer_left_is_removed_and_what_a_writer_has_open_is_not(tmp_path):
    file = tmp_path / "notes"
    left = tmp_path / f"notes.0{UNFINISHED}"
    left.write_text("killed")
    with replacing(file) as stream:
        stream.write(b"first")
        assert not left.exists()
        write_text(file, "second")
        (own,) = tmp_path.glob(f"*{UNFINISHED}")
    assert file.read_text() == "first"
    assert not own.exists()


def save_and_read(path, barrier, seconds, writer):
    """Write and read one path over and over; the number of reads."""
    content = {"writer": writer, "weights": torch.full((2_000 * writer,), float(writer))}
    barrier.wait()
    stop = time.monotonic() + seconds
    count = 0
    while time.monotonic() < stop:
        archives.write(path, content, mode="w")
        found = archives.read(path)
        assert (found["weights"] == found["writer"]).all()
        assert len(found["weights"]) == 2_000 * found["writer"]
        count += 1
    return count


def race(path, seconds, processes):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    barrier = context.Barrier(processes)
    racers = [
        context.Process(target=save_and_read, args=(path, barrier, seconds, 1 + racer))
        for racer in range(processes)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * processes
    assert list(path.parent.iterdir()) == [path]


def test_racing_threads_read_whole_files(tmp_path):
    path, barrier = tmp_path / "file", Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        counts = list(pool.map(lambda writer: save_and_read(path, barrier, 1, writer), (1, 2, 3)))
    assert min(counts) > 5
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_racing_processes_read_whole_files(tmp_path):
    race(tmp_path / "file", 12, 4)


def outcomes(attempt, racers=4):
    """What several threads come to that all attempt one thing at once."""
    barrier = Barrier(racers)

    def run(racer):
        barrier.wait()
        return attempt(racer)

    with ThreadPoolExecutor(racers) as pool:
        return list(pool.map(run, range(racers)))


def test_one_of_several_new_writers_wins(tmp_path):
    for repetition in range(40):
        path = tmp_path / str(repetition)

        def attempt(racer, path=path):
            with suppress(FileExistsError):
                write_text(path, str(racer), "x")
                return str(racer)

        (winner,) = filter(None, outcomes(attempt))
        assert path.read_text() == winner


def test_one_of_several_runs_claims_a_directory(tmp_path):
    for repetition in range(20):
        path = tmp_path / str(repetition)

        def attempt(racer, path=path):
            with suppress(ValueError), runs.claimed(path, str(racer)):
                return str(racer)

        (winner,) = filter(None, outcomes(attempt))
        assert (path / runs.CONFIG).read_text() == winner


def start(directory, barrier, C):
    torch.set_num_threads(1)
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        config = compose("train", overrides=[*QUIET, *ROUTES["dual"], f"paths.run={directory}", f"C={C}"])
    barrier.wait()
    jobs.start(config)


@pytest.mark.slow
def test_one_of_two_trainings_of_one_directory_is_completed(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for pair in range(20):
        directory, barrier = tmp_path / str(pair), context.Barrier(2)
        racers = [context.Process(target=start, args=(directory, barrier, C)) for C in (0.1, 0.2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        (winner,) = [C for C, racer in zip((0.1, 0.2), racers, strict=True) if racer.exitcode == 0]
        assert f"\nC: {winner}\n" in (directory / "config.yaml").read_text(encoding="utf-8")
        assert (directory / "metrics.json").exists()
