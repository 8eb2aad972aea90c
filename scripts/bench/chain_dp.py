"""Forward–backward in a batch of chains, beside a plain loop of logsumexp over positions.

1,000 chains of length 100 with 26 states: log partition, marginals and Viterbi decoding. Peer: the usual
recursion in torch, one (chains, states, states) table of log-potentials a step, autograd for its marginals.

Floor: the marginals of all edges are written once, 1,000 · 99 · 26² numbers, 268 MB in float32: to fill as
much fresh memory with ones takes one core 120 ms. The log partition alone takes 1,000 · 99 · 26²
multiply-adds, a few milliseconds.

    python scripts/bench/chain_dp.py [--repeats 5] [--chains 1000] [--length 100] [--states 26]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from measuring import described, median_seconds, show, table, told, write_csv

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.trees import chain_dp


def random_chains(chains: int, length: int, states: int) -> ChainEnergy:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(chains, length, states, generator=generator)
    return ChainEnergy(unary, torch.randn(states, states, generator=generator))


def plain_log_partition(energy: ChainEnergy) -> torch.Tensor:
    message = energy.unary[:, 0]
    for t in range(1, energy.max_length):
        message = (message[..., None] + energy.transition).logsumexp(1) + energy.unary[:, t]
    return message.logsumexp(-1)


def plain_gradient(energy: ChainEnergy) -> torch.Tensor:
    unary = energy.unary.clone().requires_grad_()
    total = plain_log_partition(ChainEnergy(unary, energy.transition)).sum()
    return torch.autograd.grad(total, unary)[0]


def gradient(energy: ChainEnergy) -> torch.Tensor:
    unary = energy.unary.clone().requires_grad_()
    total = chain_dp.log_partition(ChainEnergy(unary, energy.transition)).sum()
    return torch.autograd.grad(total, unary)[0]


def plain_viterbi(energy: ChainEnergy) -> torch.Tensor:
    best, pointers = energy.unary[:, 0], []
    for t in range(1, energy.max_length):
        best, origin = (best[..., None] + energy.transition).max(1)
        best = best + energy.unary[:, t]
        pointers.append(origin)
    labels = [best.argmax(-1)]
    for origin in reversed(pointers):
        labels.append(origin.gather(1, labels[-1][:, None])[:, 0])
    return torch.stack(labels[::-1], 1)


ROUTINES: dict[str, tuple[Callable, Callable | None]] = {
    "log partition": (chain_dp.log_partition, plain_log_partition),
    "node marginals, by gradient": (gradient, plain_gradient),
    "marginals of nodes and edges": (lambda energy: chain_dp.marginals(energy).states, None),
    "Viterbi": (lambda energy: chain_dp.decode(energy).labels, plain_viterbi),
}


def main() -> None:
    parser = described(__file__, __doc__)
    for name, value in (("repeats", 5), ("chains", 1000), ("length", 100), ("states", 26)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    energy = random_chains(options.chains, options.length, options.states)
    rows = []
    for name, (ours, peer) in ROUTINES.items():
        own = median_seconds(lambda ours=ours: ours(energy), options.repeats)
        other = None
        if peer is not None:
            other = median_seconds(lambda peer=peer: peer(energy), options.repeats)
            torch.testing.assert_close(ours(energy), peer(energy), rtol=1e-4, atol=1e-4)
        row = {
            "routine": name,
            "seconds": round(own, 4),
            "peer_seconds": None if other is None else round(other, 4),
            "ratio": None if other is None else round(other / own, 1),
            "threads": torch.get_num_threads(),
        }
        rows.append(told(row))
    show(rows)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
