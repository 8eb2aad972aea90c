"""Files of columns: what is read from them, and what is refused by its line."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.data import load_conll2000, read_conll
from lmbm_torch.data.formats.npz import open_archive
from lmbm_torch.data.named import data_folder
from lmbm_torch.data.sequences.conll import read_columns, write_columns
from lmbm_torch.persistence.archives import pack, unpack

CONTENT = """-DOCSTART- -X- O

the DT B-NP
cat NN I-NP
sat VB B-VP


a DT B-NP
cat NN I-NP

"""


def written(tmp_path, content: str, name: str = "mine.conll"):
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    return file


def test_blank_lines_and_documents_end_sequences(tmp_path):
    tokens = read_columns(written(tmp_path, CONTENT))
    assert tokens.start.tolist() == [0, 3, 5]
    assert tokens.lines == [3, 4, 5, 8, 9]
    assert tokens.column(0) == ["the", "cat", "sat", "a", "cat"]


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n-DOCSTART-\tx\n"])
def test_tabs_hold_values_with_blanks(tmp_path, end):
    tokens = read_columns(written(tmp_path, "\ufeffNew York\tNNP\tB\r\nis\t\tO" + end))
    assert tokens.rows[0] == ["New York", "NNP", "B"]
    assert tokens.separator == "\t"
    assert tokens.rows[1] == ["is", "", "O"]


def documents(sizes) -> str:
    """A file of documents of these numbers of sequences, each one token with the document's number."""
    begins = ["-DOCSTART- O\n", "# newdoc id = a b\n"]
    return "".join(begins[number % 2] + f"w{number} T\n\n" * size for number, size in enumerate(sizes))


def test_documents_are_numbered(tmp_path):
    tokens = read_columns(written(tmp_path, documents([2, 1, 3])))
    assert tokens.documents.tolist() == [0, 0, 1, 2, 2, 2]
    assert read_columns(written(tmp_path, "a T\n\nb T\n" + documents([1]), "later")).documents.tolist() == [
        0,
        0,
        1,
    ]


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_held_out_together(tmp_path, seed):
    sizes = [3, 1, 4, 2, 2]
    file = written(tmp_path, documents(sizes))
    of_each = np.repeat(np.arange(5), sizes)
    for groups in ("documents", [f"g{each}" for each in of_each]):
        fold = read_conll(file, test_fraction=0.3, groups=groups, seed=seed).fold
        held = [{*fold[of_each == each].tolist()} for each in range(5)]
        assert all(len(each) == 1 for each in held)
        assert 2 <= fold.sum() <= 6
    alone = read_conll(file, test_fraction=0.25, groups=range(12), seed=seed).fold
    np.testing.assert_array_equal(alone, read_conll(file, test_fraction=0.25, seed=seed).fold)
    assert alone.sum() == 3


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("chapters", "groups: expected 'documents' or a group for each sequence, got 'chapters'"),
        ([0, 1], "groups: expected shape"),
        ("documents", "groups: expected groups to hold out, got 1 in all"),
    ],
)
def test_odd_groups_are_refused(tmp_path, groups, message):
    file = written(tmp_path, documents([4]))
    with pytest.raises(ValueError, match=message):
        read_conll(file, test_fraction=0.25, groups=groups)


def test_what_is_written_is_read(tmp_path):
    tokens = read_columns(written(tmp_path, CONTENT))
    write_columns(tmp_path / "out", tokens, [[tag] for tag in "abcde"])
    again = read_columns(tmp_path / "out")
    assert [row[:-1] for row in again.rows] == tokens.rows
    assert again.column(-1) == list("abcde")
    assert again.start.tolist() == tokens.start.tolist()
    with pytest.raises(FileExistsError):
        write_columns(tmp_path / "out", tokens, [[tag] for tag in "abcde"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "expected lines with tokens, got only blank lines, comments and -DOCSTART-"),
        ("\n-DOCSTART- x\n\n", "expected lines with tokens, got only blank lines, comments and -DOCSTART-"),
        ("a x\n\nb x y\n", r"line 3: expected 2 values as in line 1, got 3: 'b x y'"),
        ("\na\tx\nb x\n", r"line 3: expected 2 values as in line 2, got 1"),
    ],
)
def test_bad_files_are_refused_by_their_lines(tmp_path, content, words):
    with pytest.raises(ValueError, match=rf"mine\.conll: {words}"):
        read_columns(written(tmp_path, content))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "mine.conll").write_bytes(b"a\x81 x\n")
    with (
        pytest.warns(UserWarning, match=r"mine\.conll: .* in line 1; reading as cp1252"),
        pytest.raises(ValueError, match=r"mine\.conll: expected text in UTF-8 or cp1252, got .* 0x81"),
    ):
        read_columns(tmp_path / "mine.conll")
    with pytest.raises(FileNotFoundError, match="path: expected a file"):
        read_columns(tmp_path / "nowhere")


def test_features_are_the_values_around_a_token(tmp_path):
    data = read_conll(written(tmp_path, CONTENT), templates=[[[0], [-1, 0]], [[1]]])
    assert data.label_names == ("B-NP", "B-VP", "I-NP")
    assert data.labels.tolist() == [0, 2, 1, 0, 2]
    names = np.array(data.feature_names)
    rows = [set(names[row.indices]) for row in data.within(0).features[0]]  # pyright: ignore
    assert rows[0] == {"word[0]=the", "word[-1,0]=<none>|the", "tag[1]=NN"}
    assert rows[2] == {"word[0]=sat", "word[-1,0]=cat|sat", "tag[1]=<none>"}
    assert len(names) == len({*names})


def test_the_tag_may_stand_in_any_column(tmp_path):
    file = written(tmp_path, "B-NP the DT\nI-NP cat NN\n")
    data = read_conll(file, tag=0, columns=["form", "class"], templates=[[[0]], [[0]]])
    assert data.label_names == ("B-NP", "I-NP")
    assert data.feature_names == ("form[0]=cat", "form[0]=the", "class[0]=DT", "class[0]=NN")


def test_only_training_says_what_there_is(tmp_path):
    test = written(tmp_path, "the DT B-NP\ndog NN I-NP\nok UH O\n", "test.conll")
    data = read_conll(written(tmp_path, CONTENT), test=test)
    alone = read_conll(written(tmp_path, CONTENT, "alone.conll"))
    assert data.fold.tolist() == [0, 0, 1]
    assert data.feature_names == alone.feature_names
    assert data.label_names == (*alone.label_names, "O")
    (first,), (dog,) = data.within(1).features, [data.within(1).features[0][[1]]]
    assert "word[0]=the" in {data.feature_names[place] for place in first[[0]].indices}
    assert not any(data.feature_names[place].startswith("word[0]") for place in dog.indices)


def test_an_unknown_value_is_none_beyond_the_ends(tmp_path):
    data = read_conll(written(tmp_path, CONTENT), templates=[[[-1]], [[0]]])
    schema = data.schema
    assert schema is not None
    tokens = read_columns(written(tmp_path, "dog XX\ncat NN\n", "new.conll"))
    features = schema.data(tokens, "new").features
    names = [{data.feature_names[place] for place in features[[row]].indices} for row in (0, 1)]
    assert names == [{"word[-1]=<none>"}, {"tag[0]=NN"}]
    assert schema.unknown(tokens) == {"word": 1, "tag": 1}


def test_some_sequences_are_held_out_by_the_seed(tmp_path):
    file = written(tmp_path, "\n".join(f"w{n} t{n % 3}\n" for n in range(40)))
    data = read_conll(file, test_fraction=0.25, seed=3)
    assert (data.fold == 1).sum() == 10
    assert np.array_equal(data.fold, read_conll(file, test_fraction=0.25, seed=3).fold)
    assert not np.array_equal(data.fold, read_conll(file, test_fraction=0.25, seed=4).fold)
    held = {f"word[0]=w{n}" for n in np.flatnonzero(data.fold == 1)}
    assert not held & {*data.feature_names}


def test_a_schema_comes_back(tmp_path):
    data = read_conll(written(tmp_path, CONTENT))
    assert data.schema is not None
    again = unpack(pack(data.schema))
    tokens = read_columns(tmp_path / "mine.conll")
    assert (again.data(tokens, "x").features != data.features).nnz == 0
    assert again.windows.names == data.feature_names


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tag": 3}, "tag: expected the position of a column, -3 to 2, got 3"),
        ({"columns": ["word"]}, "columns: expected 2, one for each column of features, got 1"),
        ({"templates": [[[0]]]}, "templates: expected 2"),
        ({"test_fraction": 1.0}, "test_fraction: expected 0 or more and less than 1"),
        ({"test_fraction": 0.9}, "expected a share that leaves some of 2 sequences"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        read_conll(written(tmp_path, CONTENT), **settings)


def test_files_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected at least two columns .one with tags., got 1"):
        read_conll(written(tmp_path, "a\nb\n", "one.conll"))
    file, two = written(tmp_path, CONTENT), written(tmp_path, "a b\n", "two.conll")
    with pytest.raises(ValueError, match=r"test: expected 3 columns as in .*, got 2"):
        read_conll(file, test=two)
    schema = read_conll(file).schema
    assert schema is not None
    with pytest.raises(ValueError, match="line 1: expected 3 values, or 2 without the tag, got 4"):
        schema.data(read_columns(written(tmp_path, "a b c d\n", "four.conll")), "four")


def test_the_features_are_those_of_the_shared_task(tmp_path):
    """A file of the first sentences gives the features that ``load_conll2000`` makes of its arrays."""
    try:
        folder = data_folder() / "conll2000"
    except ValueError as missing:
        pytest.skip(str(missing))
    if not folder.is_dir():
        pytest.skip("needs conll2000 in LMBM_DATA")
    known = load_conll2000()
    with open_archive(folder / "conll2000.npz") as archive:
        tags = {name: archive[name].astype(str) for name in ("words", "pos_tags", "chunk_tags")}
        codes = [archive[f"{name}_train"] for name in ("word", "pos", "chunk")]
        start = archive["sent_ptr_train"][:301]
    lines = [
        " ".join(str(names[code[token]]) for names, code in zip(tags.values(), codes, strict=True))
        + "\n" * (1 + (token + 1 in start))
        for token in range(start[-1])
    ]
    data = read_conll(written(tmp_path, "".join(lines)))
    columns = {name: place for place, name in enumerate(known.feature_names)}
    order = [columns[name] for name in data.feature_names]
    assert (known.features[: start[-1]][:, order] != data.features).nnz == 0
    assert known.features[: start[-1]].nnz == data.features.nnz


UNIVERSAL = """# text = Vamonos al mar
1-2\tvamonos\t_
1\tvamos\tVERB
2\tnos\tPRON
2.1\tya\tADV
3-4\tal\t_
3\ta\tADP
4\tel\tDET

1\tmar\tNOUN
"""


def test_multi_word_tokens_and_empty_nodes_are_left_out(tmp_path):
    tokens = read_columns(written(tmp_path, UNIVERSAL))
    assert tokens.column(1) == ["vamos", "nos", "a", "el", "mar"]
    assert (tokens.start.tolist(), tokens.lines) == ([0, 4, 5], [3, 4, 7, 8, 10])


@pytest.mark.parametrize(("old", "new"), [("2\tnos", "7\tnos"), ("1\tmar", "1-1\tmar"), ("2.1\tya", "x\tya")])
def test_values_like_spans_are_tokens_where_lines_are_not_numbered(tmp_path, old, new):
    assert len(read_columns(written(tmp_path, UNIVERSAL.replace(old, new))).rows) == 8
