"""Rows of one group of a table, such as a patient's, are held out together or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.data.datamodule import serve_table
from lmbm_torch.data.formats.table import read_table
from lmbm_torch.data.splits import stratified_split


@pytest.fixture
def visits(tmp_path):
    """Thirty patients of four visits, named by texts; the first patient's first label is missing once."""
    random = np.random.default_rng(0)
    lines = ["patient,pulse,sick,tired"]
    for visit in range(120):
        sick = "" if visit == 0 else int(random.random() < 0.4)
        lines.append(f"p{visit % 30},{random.random():.3f},{sick},{int(random.random() < 0.3)}")
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines))
    return path


def patients(rows):
    return {int(row) % 30 for row in rows}


def test_no_group_is_in_two_parts(visits):
    served = serve_table(
        visits, ["sick", "tired"], groups="patient", test_fraction=0.3, validation_fraction=0.3, seed=1
    )
    parts = [patients(rows) for rows in (served.train_rows, served.validation_rows, served.data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 30
    assert all(parts)
    # Nothing could be measured on a label that is missing.
    assert 0 in parts[0]
    assert served.data.feature_names == ("pulse",)


def test_without_groups_a_patient_is_in_several(visits):
    data = read_table(visits, ["sick", "tired"], ignore="patient", test_fraction=0.3, seed=1)
    assert patients(data.train) & patients(data.test)


def test_groups_are_no_feature_beside_a_test_table_and_other_ignored_columns(visits):
    data = read_table(visits, ["sick"], test=visits, groups="patient", ignore=["tired"])
    assert data.feature_names == ("pulse",)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("doctor", "groups: expected the name of a column of the table, got 'doctor'"),
        ("sick", "groups: expected a group"),
    ],
)
def test_what_names_no_groups_is_refused(visits, groups, message):
    with pytest.raises(ValueError, match=message):
        read_table(visits, ["tired"], groups=groups, test_fraction=0.3)


def test_rare_labels_have_their_share_of_the_test_part_of_ones_own_table(tmp_path):
    path = tmp_path / "mine.csv"
    random = np.random.default_rng(0)
    rows = [[row, *(random.random(12) < 0.5), row % 97 == 0] for row in range(970)]
    names = [f"tag_{number}" for number in range(13)]
    path.write_text("\n".join(",".join(map(str, row)) for row in [["x", *names], *np.array(rows, int)]))
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        configured = compose("train", overrides=["data=table", f"data.train={path}", "data.labels=[tag_*]"])
    split = instantiate(configured.data).data
    # Ten in all, of 970.
    assert split.test_labels[:, 12].sum() == 2
    assert abs(len(split.test) - 194) <= 5
    # Runs of before, whose configurations do not name it, have the test part that they had.
    before = serve_table(path, ["tag_*"], test_fraction=0.2).data
    expected = read_table(path, ["tag_*"], test_fraction=0.2, test_splitter=stratified_split)
    assert before.sha256() == expected.sha256() != split.sha256()
