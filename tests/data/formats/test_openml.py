from __future__ import annotations

import hashlib
import io
import json
from urllib.error import HTTPError, URLError

import numpy as np
import pytest
import sklearn
import sklearn.datasets._openml as service
from scipy.sparse import csr_array
from sklearn.utils.fixes import parse_version

from lmbm_torch.data import fetch_openml

DENSE = """@relation toy
@attribute size numeric
@attribute colour {1,2,3}
@attribute beach {TRUE,FALSE}
@attribute sunset {FALSE,TRUE}
@data
0.5,3,TRUE,FALSE
-2,1,FALSE,TRUE
"""
SPARSE = """@relation toy
@attribute size numeric
@attribute colour {0,2,3}
@attribute beach {0,1}
@attribute sunset {0,1}
@data
{0 0.5, 1 3, 2 1}
{0 -2}
{1 2, 3 1}
"""


class Answer(io.BytesIO):
    def info(self):
        return {}


@pytest.fixture
def publish(monkeypatch):
    """Answers scikit-learn's requests from memory; the network is never reached."""

    def publish(text, kind="ARFF", checksum=None, **description):
        names = [line.split()[1] for line in text.splitlines() if line.startswith("@attribute")]
        features = [
            {
                "index": str(index),
                "name": name,
                "data_type": "numeric" if name == "size" else "nominal",
                "is_target": str(name in ("beach", "sunset")).lower(),
                "is_ignore": "false",
                "is_row_identifier": "false",
                "number_of_missing_values": "0",
            }
            for index, name in enumerate(names)
        ]
        rows = str(sum(1 for line in text.partition("@data")[2].splitlines() if line))
        entry = {
            "id": "7",
            "name": "toy",
            "version": "1",
            "status": "active",
            "format": kind,
            "description": "",
            "url": "https://openml.example/toy.arff",
            "default_target_attribute": "beach,sunset",
            "md5_checksum": checksum or hashlib.md5(text.encode()).hexdigest(),
        }
        answers = {
            service._DATA_INFO.format(7): {"data_set_description": entry | description},
            service._DATA_FEATURES.format(7): {"data_features": {"feature": features}},
            service._DATA_QUALITIES.format(7): {
                "data_qualities": {"quality": [{"name": "NumberOfInstances", "value": rows}]}
            },
        }

        def answer(request, **_):
            if request.full_url == entry["url"]:
                return Answer(text.encode())
            if request.full_url not in answers:
                raise HTTPError(request.full_url, 412, "unknown data set", None, None)
            return Answer(json.dumps(answers[request.full_url]).encode())

        monkeypatch.setattr(service, "urlopen", answer)

    return publish


def test_dense_sets_come_with_the_publishers_targets(publish, tmp_path):
    publish(DENSE)
    data = fetch_openml(7, cache_folder=tmp_path)
    np.testing.assert_array_equal(data.features, [[0.5, 3], [-2, 1]])
    np.testing.assert_array_equal(data.labels, [[1, 0], [0, 1]])
    assert (data.name, data.label_names, data.feature_names) == (
        "toy",
        ("beach", "sunset"),
        ("size", "colour"),
    )
    assert len(data.train) == 2


def test_sparse_sets_stay_sparse(publish, tmp_path):
    publish(SPARSE, "Sparse_ARFF")
    data = fetch_openml(7, cache_folder=tmp_path)
    assert isinstance(data.features, csr_array)
    np.testing.assert_array_equal(data.features.toarray(), [[0.5, 3], [-2, 0], [0, 2]])
    np.testing.assert_array_equal(data.labels, [[1, 0], [0, 0], [0, 1]])


def test_labels_can_be_chosen(publish, tmp_path):
    publish(DENSE)
    data = fetch_openml(7, labels=["sunset"], cache_folder=tmp_path)
    np.testing.assert_array_equal(data.labels, [[0], [1]])
    assert data.feature_names == ("size", "colour", "beach")
    np.testing.assert_array_equal(data.features[:, 2], [1, 0])


def test_own_checksum_is_compared(publish, tmp_path):
    publish(DENSE)
    digest = fetch_openml(7, cache_folder=tmp_path).sha256()
    assert fetch_openml(7, sha256=digest.upper(), cache_folder=tmp_path).sha256() == digest
    publish(DENSE.replace("0.5", "0.25"))
    with pytest.raises(ValueError, match=f"sha256: expected {digest} of OpenML data set 7, got"):
        fetch_openml(7, sha256=digest, cache_folder=tmp_path / "fresh")


@pytest.mark.filterwarnings("ignore:Invalid cache")
def test_publishers_checksum_is_verified(publish, tmp_path):
    publish(DENSE, checksum="0" * 32)
    with pytest.raises(ValueError, match=r"data_id: OpenML data set 7: (The )?md5 checksum"):
        fetch_openml(7, cache_folder=tmp_path)


@pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.9"), reason="does not look")
def test_a_truncated_cache_is_fetched_again(publish, tmp_path):
    publish(DENSE)
    fetch_openml(7, cache_folder=tmp_path)
    cached = next(tmp_path.rglob("toy.arff.gz"))
    cached.write_bytes(cached.read_bytes()[:20])
    with pytest.warns(RuntimeWarning, match="Invalid cache"):
        assert fetch_openml(7, cache_folder=tmp_path).num_instances == 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (DENSE, {"labels": ["forest"]}, r"labels: .* unknown names \['forest'\]"),
        (DENSE, {"labels": ["colour"]}, "labels: expected 0, 1 or NaN"),
        (DENSE.replace("{1,2,3}", "{1,2,3,red}"), {}, "attribute 'colour': expected numbers"),
        (SPARSE.replace("{0,2,3}", "{1,2,3}"), {}, r"expected 0 as the first value .* columns \[1\]"),
    ],
)
def test_what_does_not_fit_is_refused(publish, tmp_path, text, options, message):
    publish(text, "Sparse_ARFF" if "{0 " in text else "ARFF")
    with pytest.raises(ValueError, match=r"data_id: OpenML data set 7: .*" + message):
        fetch_openml(7, cache_folder=tmp_path, **options)


def test_sets_without_targets_need_labels(publish, tmp_path):
    publish(DENSE, default_target_attribute="")
    with pytest.raises(ValueError, match="labels: expected names of attributes"):
        fetch_openml(7, cache_folder=tmp_path)
    assert fetch_openml(7, labels=["beach"], cache_folder=tmp_path).num_labels == 1


def test_unknown_sets_are_refused(publish, tmp_path):
    publish(DENSE)
    with pytest.raises(ValueError, match=r"data_id: OpenML data set 8: .*not found"):
        fetch_openml(8, cache_folder=tmp_path)


@pytest.mark.filterwarnings("ignore:A network error occurred")
def test_no_connection_is_said(monkeypatch, tmp_path):
    def unreachable(*_, **__):
        raise URLError("no route")

    monkeypatch.setattr(service, "urlopen", unreachable)
    monkeypatch.setattr(service.time, "sleep", lambda _: None)
    with pytest.raises(ConnectionError, match=r"data_id: could not fetch OpenML data set 7: .*no route"):
        fetch_openml(7, cache_folder=tmp_path)
