"""Train a model: ``lmbm train experiment=seven_segment_lmsbn``.

Your own table: lmbm train data=table data.train=mine.csv 'data.labels=[sunny,windy]'
An estimator (kernel_network, kernel_logistic, structural_svm, …): lmbm train data=table … estimator=crf
Sequences, with one token per line: lmbm train data=conll data.path=mine.conll estimator=crf
Every key of conf/ can be overridden (C=0.3 training=gradient), -m runs one job for each combination of
values (-m C=0.1,1), and resume=<run directory> continues an interrupted run. On SIGTERM, a run ends after the
current batch, with exit status 143 and the checkpoint of the last epoch.
"""

from __future__ import annotations

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lmbm_torch.cli.configuration import CONFIGURATION, check_callbacks, in_a_sentence
from lmbm_torch.cli.given_files import check_files
from lmbm_torch.cli.typed import Estimation


@hydra.main(version_base="1.3", config_path=CONFIGURATION, config_name="train")
def main(config: DictConfig) -> None:
    """Run the configuration of the command line, or resume a run."""
    with in_a_sentence("train"):
        _run(config)


def _run(config: DictConfig) -> None:
    hydra_config = HydraConfig.get()
    others = [each for each in hydra_config.overrides.task if not each.startswith(("resume=", "trust="))]
    if config.resume is not None and others:
        raise ValueError(
            "resume: expected no other argument except trust=, because the run's config.yaml has all "
            f"settings, got {others}"
        )
    if config.resume is None:
        if config.trust:
            raise ValueError(
                f"trust: expected no value without resume=, got {list(config.trust)}; names on the command "
                "line need no trust"
            )
        is_estimator = config.get("estimator") is not None
        if not is_estimator:
            check_callbacks(config)
        check_files(config, Estimation.__annotations__ if is_estimator else config.keys())
    # Imported here, so that mistakes on the command line are reported before these slow imports.
    from lmbm_torch.cli import estimated, jobs

    if config.resume is not None:
        jobs.resume(config.resume, list(config.trust))
    else:
        if hydra_config.mode == RunMode.MULTIRUN:
            config.paths.run = hydra_config.runtime.output_dir
        if config.get("estimator") is not None:
            estimated.start(config, hydra_config.overrides.task)
        else:
            jobs.start(config)


if __name__ == "__main__":
    main()
