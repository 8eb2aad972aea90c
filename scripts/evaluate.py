"""Metrics of a trained model on labelled rows: same as ``lmbm evaluate``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.evaluate import main

if __name__ == "__main__":
    main()
