"""What TensorBoard shows of whole runs: grouped charts, a table of settings, and what couples the labels."""

from __future__ import annotations

import pytest
import torch
from problems.small import dual_module, gradient_module, machine, quiet_trainer, served, small_data, stop_at
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from lmbm_torch.training.callbacks.display import (
    CHARTS,
    MEASURES,
    Charts,
    DependencyHeatmap,
    GroupedScalars,
    Hyperparameters,
)

VALUES = {"C": 0.5, "loss": "lmbm_torch.losses.local_hinge", "num_hidden": None}


def logged(tmp_path, module, *callbacks, max_epochs=500):
    """Fit and test, then read what was logged."""
    logger = GroupedScalars(tmp_path, name="", version="log", default_hp_metric=False)
    trainer = quiet_trainer(tmp_path, max_epochs, *callbacks, logger=logger)
    trainer.fit(module, datamodule=served(small_data()))
    trainer.test(module, datamodule=served(small_data()), verbose=False)
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    return events


def test_every_scalar_is_in_a_group(tmp_path):
    tags = logged(tmp_path, dual_module(), stop_at(1e-3)).Tags()["scalars"]
    assert {tag.split("/")[0] for tag in tags} == {"train", "fit", "test"}
    assert all("/" in tag for tag in tags)


def test_settings_stand_beside_measures_that_are_logged(tmp_path):
    events = logged(tmp_path, dual_module(), stop_at(1e-3), Hyperparameters(VALUES))
    plugin = events.PluginTagToContent("hparams")
    start = plugin_data_pb2.HParamsPluginData.FromString(plugin["_hparams_/session_start_info"])
    hparams = start.session_start_info.hparams
    assert {name: hparams[name].number_value or hparams[name].string_value for name in hparams} == {
        "C": 0.5,
        "loss": "local_hinge",
    }
    experiment = plugin_data_pb2.HParamsPluginData.FromString(plugin["_hparams_/experiment"])
    measures = [info.name.tag for info in experiment.experiment.metric_infos]
    assert sorted(measures) == sorted(MEASURES)
    assert set(measures) <= set(events.Tags()["scalars"])
    # No value but the run's own.
    assert len(events.Scalars("test/exact_match")) == 1


def test_charts_show_what_a_run_logs(tmp_path):
    events = logged(tmp_path, dual_module(), stop_at(1e-3), Charts())
    (tensor,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(tensor.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == list(CHARTS)
    shown = {tag for charts in CHARTS.values() for _, tags in charts.values() for tag in tags}
    assert {"train/objective", "train/dual", "train/gap", "test/mean_nodes"} <= shown
    assert {"train/gap", "test/exact_match"} <= shown & set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("cliques", "shown"), [("pairwise", True), ([[0, 1], [2, 3]], True), ([[0, 1, 2]], False)]
)
def test_machines_show_their_couplings_where_they_are_pairs(tmp_path, cliques, shown):
    module = gradient_module(machine(cliques=cliques), optimizer=torch.optim.Adam)
    images = logged(tmp_path, module, DependencyHeatmap(), max_epochs=1).Tags()["images"]
    assert images == (["fit/dependencies"] if shown else [])


def test_couplings_that_depend_on_the_input_are_not_shown(tmp_path):
    tied = machine(cliques=[[0, 1]], groups=[0], clique_features=[2])
    module = gradient_module(tied, optimizer=torch.optim.Adam)
    assert logged(tmp_path, module, DependencyHeatmap(), max_epochs=1).Tags()["images"] == []
