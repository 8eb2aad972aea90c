"""Predictions of a trained model for new rows: same as ``lmbm predict``, whose ``--help`` says more."""

from __future__ import annotations

from lmbm_torch.cli.predict import main

if __name__ == "__main__":
    main()
