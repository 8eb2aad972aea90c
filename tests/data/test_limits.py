"""Files that ask for too much and settings of the wrong kind are refused by name, before anything is made."""

from __future__ import annotations

import bz2
import csv
import gzip
import struct
import tracemalloc

import pytest

from lmbm_torch import incoming as limits
from lmbm_torch.data import read_arff, read_svmlight
from lmbm_torch.data.formats.table import open_table
from lmbm_torch.data.images import read_idx

MEGABYTE = 2**20


def test_a_small_file_of_one_enormous_cell_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"x" * (64 * MEGABYTE), 1))
    monkeypatch.setattr(limits, "LONGEST_LINE", MEGABYTE)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"path: .*bomb.csv.gz: line 2: expected at most 1048576 characters"):
        open_table(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * MEGABYTE


ARFF = b"@relation r\n@attribute x numeric\n@attribute y {0,1}\n@data\n"


@pytest.mark.parametrize("ending", [".svm", ".svm.gz", ".svm.bz2", ".arff"])
@pytest.mark.parametrize("start", [b"", b"1 1:2\n", ARFF])
def test_other_files_of_enormous_lines_are_refused_as_well(tmp_path, monkeypatch, ending, start):
    path = tmp_path / f"bomb{ending}"
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    if ending == ".arff" and start != ARFF:
        start = start.replace(b"1 1:2", b"% a comment")
    elif ending != ".arff" and start == ARFF:
        start = b"# a comment\n"
    path.write_bytes(pack(start + b"1" * (64 * MEGABYTE)))
    monkeypatch.setattr(limits, "LONGEST_LINE", MEGABYTE)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"path: .*bomb.*: line \d: expected at most 1048576 characters"):
        read_arff(path, ["y"]) if ending == ".arff" else read_svmlight(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * MEGABYTE


def test_a_cell_beyond_python_s_limit_is_named_by_its_line(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("a,b\n1,2\n3," + "x" * (csv.field_size_limit() + 1) + "\n")
    with pytest.raises(ValueError, match=r"long.csv: line 3: expected cells of at most 131072 characters"):
        open_table(path)
    path.write_text('a,b\n1,"2"x\n')
    with pytest.raises(ValueError, match=r"long.csv: .*expected after"):
        open_table(path)


@pytest.mark.parametrize("delimiter", ["::", "", "\n", '"', 3])
def test_a_delimiter_is_one_character(tmp_path, delimiter):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n")
    with pytest.raises(ValueError, match="delimiter: expected one character"):
        open_table(tmp_path / "t.csv", delimiter)
    assert open_table(tmp_path / "t.csv", ";").num_rows == 1


def test_images_are_not_decompressed_beyond_what_their_header_says(tmp_path):
    path = tmp_path / "images.gz"
    header = struct.pack(">HBBI", 0, 8, 1, 10)
    path.write_bytes(gzip.compress(header + bytes(64 * MEGABYTE), 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"images.gz: .* shape \(10,\), got 11 bytes at least"):
        read_idx(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * MEGABYTE
    # Asked for 4 TB, of which none is there.
    path.write_bytes(struct.pack(">HBBIII", 0, 14, 3, 2**16, 2**16, 2**7))
    with pytest.raises(ValueError, match=r"images.gz: expected numbers of shape .*, got 0 bytes"):
        read_idx(path)
