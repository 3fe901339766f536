"""Theorem 1 of RTPO, how fast its learner converges: exponents fitted to sup errors [B, R, H, N].

Used by `experiments.theory.convergence_learning`. Errors are of B MDPs, R seeds and H stages, the last
turn first, after each of N samples.
"""

import numpy as np

from experiments.theory.claims import Claim, at_most
from experiments.theory.intervals import half_width

TOLERANCE = 0.06  # below half of the distance between rates; samples are finite


def error_rows(name: str, errors: np.ndarray) -> list[dict]:
    """Root mean square over runs of the sup error of each turn at powers of two of samples."""
    num_turns, num_samples = errors.shape[2:]
    at = [num_samples >> shift for shift in range(6, -1, -1)]
    rms = np.sqrt((errors**2).mean((0, 1)))
    return [
        {
            "schedule": name,
            "turn": num_turns - 1 - stage,
            "samples": n,
            "rms_sup_error": rms[stage, n - 1],
        }
        for stage in range(num_turns)
        for n in at
    ]


def exponents(errors: np.ndarray) -> np.ndarray:
    """Slope of the log error of each turn in the last factor of eight of samples, [H]."""
    at = np.array([errors.shape[-1] >> shift for shift in (3, 2, 1, 0)])
    rms = np.sqrt((errors[..., at - 1] ** 2).mean((0, 1)))[::-1]
    return np.polyfit(np.log(at), np.log(rms.T), 1)[0]


def pseudo_exponents(errors: np.ndarray) -> np.ndarray:
    """Exponents by seed, [R, H]: jackknife values, whose spread over seeds is that of the fit."""
    count = errors.shape[1]
    without = [exponents(np.delete(errors, seed, axis=1)) for seed in range(count)]
    return count * exponents(errors) - (count - 1) * np.array(without)


def rate_rows(name: str, rate: float, errors: np.ndarray) -> list[dict]:
    """The fitted exponent of each turn, with its 95% t interval over seeds."""
    found, half = exponents(errors), half_width(pseudo_exponents(errors))
    return [
        {"schedule": name, "turn": turn, "predicted": rate, "exponent": found[turn],
         "half_width": half[turn]}
        for turn in range(len(found))
    ]  # fmt: skip


def rate_claim(name: str, rate: float, errors: np.ndarray, where: str) -> Claim:
    """The fitted exponent, mean over turns; the tolerance grows with its noise over seeds."""
    num_mdps, num_seeds = errors.shape[:2]
    noise = half_width(pseudo_exponents(errors).mean(1))
    return at_most(f"RTPO Thm 1(a): sup error falls like samples^{rate} with alpha = {name}",
                   f"{where}; fitted exponent, mean over turns; bound {TOLERANCE} + "
                   f"{noise:.3f}, half a 95% t interval, {num_seeds - 1} degrees of freedom",
                   num_mdps * num_seeds, abs(exponents(errors).mean() - rate),
                   TOLERANCE + noise)  # fmt: skip
