"""Cells of contrastive methods in the tables of belief_propagation_in_crbms_2017, on a CPU.

The protocol is that of ``crbm_2017_paper``, but for short runs of ``--short-epochs``, a budget of CPU time
for each cell instead of MLE-BP's time and, with ``--penalty``, couplings that each step shrinks: plain
contrastive divergence runs away (``scripts/bench/contrastive_runs.py``). The last visible state of
CD-PercLoss is the mode given the sampled hidden units.

    OMP_NUM_THREADS=1 python scripts/bench/contrastive_cells.py CD-PercLoss "noisy MNIST 10 %" --minutes 15
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from measuring import described, show, table, told, write_csv
from omegaconf import OmegaConf

from reproduce import CONFIGURATION, crbm_2017_paper, crbm_problems


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument(
        "method", help="a contrastive method of the tables, with ', centred' for centred steps"
    )
    parser.add_argument("tasks", nargs="+", help="in the order of the computation")
    parser.add_argument("--minutes", type=float, default=math.inf, help="CPU time of a cell's long run")
    parser.add_argument("--short-epochs", type=int, default=2, help="of the runs that choose")
    parser.add_argument("--penalty", type=float, default=0.0, help="of the couplings, for each image")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates to choose from")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="to choose from")
    args = parser.parse_args()
    loaded: Any = OmegaConf.load(Path(CONFIGURATION, "table", "crbm_2017_paper.yaml"))
    chosen = {"device": "cpu", "short_epochs": args.short_epochs, "penalty": args.penalty}
    asked = {"learning_rates": args.rates, "batch_sizes": args.batch_sizes}
    chosen |= {name: values for name, values in asked.items() if values is not None}
    settings = crbm_2017_paper.Protocol(**{**loaded.table.protocol, **chosen})
    rows = []
    with table(args.output, args.name) as folder:
        for task in args.tasks:
            state = folder / f"{args.method} {task}.pt".replace(" ", "_")
            limit = {"budget": 60 * args.minutes}
            found = crbm_2017_paper.cell(
                settings, os.environ["LMBM_DATA"], task, args.method, limit, state=state
            )
            # The paper's steps are plain.
            paper = crbm_problems.PAPER[task].get(args.method, ("", ""))
            rows.append(
                told(
                    {
                        "problem": task,
                        "method": args.method,
                        "penalty": args.penalty,
                        "all": found["all"],
                        "paper_all": paper[0],
                        "changed": found["changed"],
                        "paper_changed": paper[1],
                        "learning_rate": found["learning_rate"],
                        "batch_size": found["batch_size"],
                        "best_epoch": found["epoch"],
                        "epochs": len(found["epochs"]),
                        "short_epochs": args.short_epochs,
                        "cpu_minutes": found["cpu_seconds"] / 60,
                    }
                )
            )
            write_csv(folder / "table.csv", rows)
    show(rows)


if __name__ == "__main__":
    main()
