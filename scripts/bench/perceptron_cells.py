"""The cells of CD-PercLoss in the tables of belief_propagation_in_crbms_2017, on a CPU, those asked for.

The last visible state of the ten steps is the mode given the sampled hidden units. Plain steps at the
protocol of ``crbm_2017_paper``, but for short runs of ``--short-epochs`` and a budget for each cell instead
of MLE-BP's time.

    OMP_NUM_THREADS=1 python scripts/bench/perceptron_cells.py "noisy MNIST 10 %" --minutes 15
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from measuring import described, show, table, told, write_csv
from omegaconf import OmegaConf

from reproduce import CONFIGURATION, crbm_2017_paper, crbm_problems

METHOD = "CD-PercLoss"


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("tasks", nargs="+", help="in the order of the computation")
    parser.add_argument("--minutes", type=float, default=math.inf, help="CPU time of a cell's long run")
    parser.add_argument("--short-epochs", type=int, default=2, help="of the runs that choose")
    args = parser.parse_args()
    loaded: Any = OmegaConf.load(Path(CONFIGURATION, "table", "crbm_2017_paper.yaml"))
    chosen = {"device": "cpu", "short_epochs": args.short_epochs}
    settings = crbm_2017_paper.Protocol(**{**loaded.table.protocol, **chosen})
    rows = []
    with table(args.output, args.name) as folder:
        for task in args.tasks:
            state = folder / f"{task.replace(' ', '_')}.pt"
            limit = {"budget": 60 * args.minutes}
            found = crbm_2017_paper.cell(settings, os.environ["LMBM_DATA"], task, METHOD, limit, state=state)
            paper = crbm_problems.PAPER[task][METHOD]
            rows.append(
                told(
                    {
                        "problem": task,
                        "all": found["all"],
                        "paper_all": paper[0],
                        "changed": found["changed"],
                        "paper_changed": paper[1],
                        "learning_rate": found["learning_rate"],
                        "batch_size": found["batch_size"],
                        "best_epoch": found["epoch"],
                        "epochs": len(found["epochs"]),
                        "cpu_minutes": found["cpu_seconds"] / 60,
                    }
                )
            )
            write_csv(folder / "table.csv", rows)
    show(rows)


if __name__ == "__main__":
    main()
