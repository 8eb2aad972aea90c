"""Text of files: byte-order marks, encodings, line ends and compression are the same for all readers."""

from __future__ import annotations

import bz2
import gzip

import numpy as np
import pytest

from lmbm_torch import incoming
from lmbm_torch.constraints import read as read_rules
from lmbm_torch.data import read_arff, read_conll, read_evidence, read_svmlight, read_table, read_uai
from lmbm_torch.data.sequences.conll import read_columns

ARFF = """@relation r
@attribute town {Köln,Rom}
@attribute x numeric
@attribute y {0,1}
@data
Köln,1,0
Rom,2,1
"""
READERS = {
    "table.csv": ("town,y\nKöln,1\nRom,0\n", lambda file: features(read_table(file, "y"))),
    "table.tsv": ("town\ty\nKöln\t1\nRom\t0\n", lambda file: features(read_table(file, "y"))),
    "table.arff": (ARFF, lambda file: features(read_table(file, "y"))),
    "matrix.arff": (
        ARFF.replace("Köln", "0").replace("Rom", "1"),
        lambda file: features(read_arff(file, ["y"])),
    ),
    "rows.svm": ("1 1:2 # Köln\n2 2:3\n", lambda file: features(read_svmlight(file))),
    "tokens.conll": ("Köln N\nruft V\n\nRom N\n", lambda file: read_columns(file).rows),
    "sequences.conll": ("Köln N\nruft V\n\nRom N\n", lambda file: read_conll(file).label_names),
    "rules.txt": (
        "'Köln' -> not b  # nie\n\na -> b\n",
        lambda file: [rule.text for rule in read_rules(file)],
    ),
    "model.uai": ("MARKOV\n# Köln\n1 2\n1\n1 0\n2 1 2\n", lambda file: read_uai(file).table.tolist()),
    "model.evid": ("// Köln\n1 0 1\n", lambda file: read_evidence(file, (2,)).tolist()),
}
FORMS = {
    "mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "Windows ends": lambda text: text.replace("\n", "\r\n").encode(),
    "old ends": lambda text: text.replace("\n", "\r").encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "bzip2": lambda text: bz2.compress(text.encode()),
}


def features(data):
    dense = data.features if isinstance(data.features, np.ndarray) else data.features.toarray()
    return dense.tolist(), data.labels.tolist(), data.label_names, data.feature_names, data.name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_every_form(tmp_path, name, form):
    text, read = READERS[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    expected = read(tmp_path / name)
    ending = {"gzip": ".gz", "bzip2": ".bz2"}.get(form, "")
    (tmp_path / f"{name}{ending}").write_bytes(FORMS[form](text))
    assert read(tmp_path / f"{name}{ending}") == expected
    # What a file is, its first bytes say.
    (tmp_path / name).write_bytes(FORMS[form](text))
    assert read(tmp_path / name) == expected


@pytest.mark.parametrize("name", [name for name in READERS if name != "matrix.arff"])
def test_every_reader_takes_the_encoding_of_windows_with_a_warning(tmp_path, name):
    text, read = READERS[name]
    (tmp_path / name).write_bytes(text.encode("cp1252"))
    with pytest.warns(UserWarning, match=rf"{name}: expected text in UTF-8, .* reading as cp1252: .*Köln"):
        found = read(tmp_path / name)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert found == read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "line"),
    [("1 1:2\n1 x:2\n", 2), ("1 1:2\n2 2:1\ncat 1:1\n", 3), ("1 1:2\n# no\n1 2\n", 3)],
)
def test_bad_lines_of_svmlight_are_named(tmp_path, text, line):
    (tmp_path / "rows.svm").write_text(text)
    with pytest.raises(ValueError, match=rf"rows\.svm: line {line}: "):
        read_svmlight(tmp_path / "rows.svm")


def arff(tmp_path, header, *rows, relation="r"):
    file = tmp_path / "mine.arff"
    file.write_text("\n".join([f"@relation {relation}", *header, *rows]), encoding="utf-8")
    return file


HEADER = ["@attribute x numeric", "@attribute y {0,1}"]


def test_a_row_on_the_line_of_data_is_read(tmp_path):
    for start in ("@data 1,0", "@DATA\t1,0 % first"):
        assert read_arff(arff(tmp_path, HEADER, start, "2,1"), ["y"]).features.tolist() == [[1], [2]]


@pytest.mark.parametrize("relation", ["'vitamin-C 1 study'", "'a -C 1 b'", "'x: -C 1x'", "'x: a-C 1'"])
def test_an_option_of_meka_stands_behind_a_colon_as_a_word(tmp_path, relation):
    with pytest.raises(ValueError, match="labels: expected MEKA's option"):
        read_arff(arff(tmp_path, HEADER, "@data", "1,0", relation=relation))


@pytest.mark.parametrize("relation", ["'x: -C -1'", "'x:-C -1'", "'x: -split 5 -C -1 -f'", "x: -C -1"])
def test_an_option_of_meka_is_found(tmp_path, relation):
    assert read_arff(arff(tmp_path, HEADER, "@data", "1,0", relation=relation)).label_names == ("y",)


def test_quotes_are_escaped_in_names_and_values(tmp_path):
    header = [r"@attribute 'it\'s \\ \"big\"' {'don\'t',\"a, b\",'50%'}  % comment", *HEADER]
    rows = [r"'don\'t',1,0", '"a, b" , 2 ,1 % behind', "% alone", "'50%',?,0"]
    table = read_table(arff(tmp_path, header, "@data", *rows), "y", missing="impute")
    names = tuple(f'it\'s \\ "big"={value}' for value in ("50%", "a, b", "don't"))
    assert table.feature_names == (*names, "x")
    assert table.features[:, :3].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("kind", ["INTEGER [0,9]", "real[0.0, 1.0]", "Numeric % counted", "integer"])
def test_numbers_may_have_ranges_and_comments(tmp_path, kind):
    data = read_arff(arff(tmp_path, [f"@attribute x {kind}", "@attribute y {0,1}"], "@data", "1.5,0"), ["y"])
    assert data.features.tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("kind", "words"), [("date", "dates"), ('date "yyyy-MM-dd"', "dates"), ("string", "strings")]
)
def test_dates_are_said_to_be_unread(tmp_path, kind, words):
    file = arff(tmp_path, [f"@attribute t {kind}", *HEADER], "@data", "'2026-05-31',1,0", "'2026-06-01',1,1")
    with pytest.raises(ValueError, match=rf"attributes: .* got {words} in \['t'\]"):
        read_arff(file, ["y"])
    assert "t" in read_table(file, "y").feature_names[0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["{0 1, 1 1}", "{0 1 1 1}"], "line 6: attribute .x.: expected a number, got .1 1 1."),
        (["{0 1, 0 1}"], r"line 5: expected distinct indices from 0 to 1, got \[0, 0\]"),
        (["{0 1, 1 1} x"], "line 5: expected the end of the line, got . x."),
        (["{0 1, 1 1"], "line 5: expected values between commas, got . 1 1."),
        (["1,'0"], "line 5: expected values between commas, got"),
        (["'1'0,1"], "line 5: expected values between commas, got"),
    ],
)
def test_bad_rows_are_named_by_their_lines(tmp_path, rows, words):
    with pytest.raises(ValueError, match=f"mine.arff: {words}"):
        read_arff(arff(tmp_path, HEADER, "@data", *rows), ["y"])


@pytest.mark.parametrize(
    "line", ["@attribute z", "@attribute", "attribute z real", "@attribute z {a,a}", "@attribute z {a"]
)
def test_bad_headers_are_named_by_their_lines(tmp_path, line):
    with pytest.raises(ValueError, match=r"mine\.arff: line 4: "):
        read_arff(arff(tmp_path, [*HEADER, line], "@data", "1,0"), ["y"])


CONLL = "# id 1\nthe DT B\ncat NN I\n\n# newdoc\n# id 2\n# NN B\n1 CD I\n"


def test_comments_of_sequences_are_no_tokens(tmp_path):
    (tmp_path / "mine.conll").write_text(CONLL)
    tokens = read_columns(tmp_path / "mine.conll")
    assert tokens.rows == [["the", "DT", "B"], ["cat", "NN", "I"], ["#", "NN", "B"], ["1", "CD", "I"]]
    assert tokens.lines == [2, 3, 7, 8]
    assert tokens.start.tolist() == [0, 2, 4]
    # Within a sequence there are none.
    (tmp_path / "mine.conll").write_text(CONLL.replace("cat NN I", "# text"))
    with pytest.raises(ValueError, match="line 3: expected 3 values as in line 2, got 2: '# text'"):
        read_columns(tmp_path / "mine.conll")


@pytest.mark.parametrize("content", ["#happy O\nday O\n", "#\nis\n", "# #\nis V\n", "#\tSYM\nis\tV\n"])
def test_tokens_may_begin_with_the_sign_of_a_comment(tmp_path, content):
    (tmp_path / "mine.conll").write_text(content)
    assert len(read_columns(tmp_path / "mine.conll").rows) == 2


def test_a_no_break_space_is_a_part_of_its_token(tmp_path):
    (tmp_path / "mine.conll").write_text("1\u00a0000 CD\nis V\n", encoding="utf-8")
    assert read_columns(tmp_path / "mine.conll").rows == [["1\u00a0000", "CD"], ["is", "V"]]


def test_names_of_labels_in_compressed_xml(tmp_path):
    (tmp_path / "mine.arff").write_text(
        "@relation r\n@attribute x real\n@attribute y {0,1}\n@data\n1,0\n2,1\n"
    )
    xml = b'<labels xmlns="http://mulan.sourceforge.net/labels"><label name="y"/></labels>'
    (tmp_path / "labels.xml.gz").write_bytes(gzip.compress(xml))
    assert read_arff(tmp_path / "mine.arff", tmp_path / "labels.xml.gz").label_names == ("y",)


def test_parquet_files_are_not_read_beyond_a_limit(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"x": np.zeros(1000), "y": np.ones(1000)}), tmp_path / "t.parquet")
    read_table(tmp_path / "t.parquet", "y", missing_labels="negative")
    monkeypatch.setattr(incoming, "ALWAYS_ALLOWED", 2**10)
    monkeypatch.setattr(incoming, "MOST_GROWTH", 2)
    with pytest.raises(ValueError, match=r"t.parquet: expected at most \d+ unpacked bytes"):
        read_table(tmp_path / "t.parquet", "y")
