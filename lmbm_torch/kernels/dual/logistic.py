"""Dual ascent for kernel logistic regression inside one block of instances.

Every function takes the kernel among the block's instances and changes ``scores`` and ``probabilities``, the
block's rows of f and α, in place. An instance's divergence KL(α ‖ softmax(f)) is the share of the duality gap
(:mod:`lmbm_torch.solvers.smo`).
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import njit

# Below this curvature, an instance's own kernel value is negligible compared with the entropy.
_FLAT = 1e-12


@njit(cache=True, nogil=True)
def class_pass(gram, upper, scores, probabilities, divergences):
    """Maximise the dual over all classes of each instance in turn, for a kernel that ignores classes.

    Args:
        gram: (block, block), kernel values.
        upper: (block,), C of each instance.
        divergences: (block,), written: the divergence of each instance before its step.
    """
    size, classes = scores.shape
    linear, found = np.empty(classes), np.empty(classes)
    for i in range(size):
        own_scores, own = scores[i], probabilities[i]
        divergences[i] = _divergence(own, own_scores)
        curvature = upper[i] * gram[i, i]
        for y in range(classes):
            linear[y] = own_scores[y] + curvature * own[y]
            found[y] = own[y]
        _simplex_step(linear, curvature, found)
        for y in range(classes):
            linear[y] = upper[i] * (own[y] - found[y])
            own[y] = found[y]
        for j in range(size):
            similarity, other = gram[j, i], scores[j]
            for y in range(classes):
                other[y] += similarity * linear[y]


@njit(cache=True, nogil=True)
def pair_pass(gram, upper, scores, probabilities, divergences, num_steps):
    """Run Algorithm 1: for each instance ``num_steps`` steps on the most violating pair of classes.

    Args:
        gram: (block, classes, block, classes), kernel values.
        upper: see :func:`class_pass`.
        divergences: see :func:`class_pass`.
        num_steps: number of steps for each instance, D in the paper.
    """
    size, classes = scores.shape
    for i in range(size):
        own_scores, own = scores[i], probabilities[i]
        divergences[i] = _divergence(own, own_scores)
        for _ in range(num_steps):
            low, high = 0, 0
            for y in range(classes):
                if np.log(own[y]) - own_scores[y] < np.log(own[low]) - own_scores[low]:
                    low = y
                if np.log(own[y]) - own_scores[y] > np.log(own[high]) - own_scores[high]:
                    high = y
            if low == high:
                break
            curvature = upper[i] * (gram[i, low, i, low] + gram[i, high, i, high] - 2 * gram[i, low, i, high])
            total = own[low] + own[high]
            share = _pair_share(own_scores[low] - own_scores[high], curvature, total, own[low])
            step = total * share - own[low]
            own[low] = total * share
            own[high] = total - own[low]
            for j in range(size):
                for y in range(classes):
                    scores[j, y] += upper[i] * step * (gram[j, y, i, high] - gram[j, y, i, low])


@njit(cache=True, nogil=True)
def _divergence(probabilities, scores):
    """Return KL(α ‖ softmax(f))."""
    largest = scores.max()
    normaliser = largest + np.log(np.exp(scores - largest).sum())
    value = 0.0
    for y in range(len(scores)):
        difference = np.log(probabilities[y]) - (scores[y] - normaliser)
        # Σ α = Σ softmax(f), so adding the difference changes nothing, and makes all terms non-negative.
        if abs(difference) < 1:
            value += probabilities[y] * (np.expm1(-difference) + difference)
        else:
            value += np.exp(scores[y] - normaliser) - probabilities[y] * (1 - difference)
    return value


@njit(cache=True, nogil=True)
def _simplex_step(linear, curvature, found):
    """Maximise linear·a − curvature/2 ‖a‖² − Σ a log a over the simplex, starting from ``found``.

    At the maximum, curvature·a + log a = linear + μ for a multiplier μ, so curvature·a is the Wright omega
    function of linear + μ + log curvature. In μ, Σ a is convex and log Σ a is concave. Therefore Newton steps
    on Σ a from above, and on log Σ a from below, never pass the root.
    """
    classes = len(linear)
    if curvature < _FLAT:
        largest = linear.max()
        for y in range(classes):
            found[y] = np.exp(linear[y] - largest)
        found /= found.sum()
        return
    start = found.argmax()
    shift = curvature * found[start] + np.log(found[start]) - linear[start]
    offset = np.log(curvature)
    for _ in range(100):
        total, slope = 0.0, 0.0
        for y in range(classes):
            omega = _wright_omega(linear[y] + shift + offset)
            found[y] = omega / curvature
            total += found[y]
            slope += found[y] / (1 + omega)
        if abs(total - 1) < 1e-12:
            break
        if total > 1:
            shift -= (total - 1) / slope
        else:
            shift -= np.log(total) * total / slope
    for y in range(classes):
        # Keep probabilities above zero, so that logarithms are finite.
        found[y] = max(found[y] / total, 1e-300)


@njit(cache=True, nogil=True)
def _wright_omega(t):
    """Solve ω + log ω = t for ω in double precision, by two iterations of fourth order."""
    if t < -40:
        return np.exp(t)
    omega = t - np.log(t) + np.log(t) / t if t > 1 else np.exp(t) / (1 + np.exp(t))
    for _ in range(2):
        residual = t - omega - np.log(omega)
        after = 1 + omega
        base = 2 * after * (after + 2 / 3 * residual)
        omega *= 1 + residual / after * (base - residual) / (base - 2 * residual)
    return omega


@njit(cache=True, nogil=True)
def _pair_share(difference, curvature, total, start):
    """Solve logit p + curvature·(total·p − start) = difference for the share p of the pair's total.

    Newton's method finds u = logit p (slope at least 1) in a bracket that every evaluation narrows.
    """
    lower = difference - curvature * max(total - start, 0.0)
    upper = difference + curvature * start
    u = min(max(np.log(start) - np.log(total - start), lower), upper) if 0 < start < total else lower
    for _ in range(100):
        share = 1 / (1 + np.exp(-u))
        value = u + curvature * (total * share - start) - difference
        if value > 0:
            upper = u
        else:
            lower = u
        if abs(value) < 1e-13 * (1 + abs(difference)) or upper - lower < 1e-15 * (1 + abs(u)):
            break
        u -= value / (1 + curvature * total * share * (1 - share))
        if not lower < u < upper:
            u = 0.5 * (lower + upper)
    # Keep p and 1 − p above zero, so that logarithms are finite.
    return min(max(share, 1e-300), 1 - 1e-16)
