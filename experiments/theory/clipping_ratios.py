"""Variance of the ratios of tokens, turns and whole actions; part of `clipping_bias`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory.claims import Claim, at_least, at_most
from tabular.ratios.clipping import unit_ratios
from tabular.ratios.token_rows import TokenRows

LEVELS = ("token", "turn_mean", "turn_product")
LENGTHS = (1, 2, 4, 8)
BEHAVIOR, POLICY = np.array([0.5, 0.5]), np.array([0.62, 0.38])


def enumerated(length: int, level: str) -> tuple[float, float]:
    """Deviation of the log-ratio and variance of the ratio over all strings of `length` tokens.

    Tokens are independent with the same two policies, by the core's ratios. Strings are listed at the
    largest length and the tokens beyond `length` masked.
    """
    longest = max(LENGTHS)
    strings = np.indices((2,) * longest).reshape(longest, -1).T
    weights = BEHAVIOR[strings].prod(1)
    turn_ids = np.broadcast_to(np.where(np.arange(longest) < length, 0, -1), strings.shape)
    zeros = np.zeros(strings.shape)
    rows = TokenRows(jnp.log(BEHAVIOR)[strings], zeros, zeros, turn_ids)
    ratios = np.asarray(_ratios(jnp.log(POLICY)[strings], rows, level))[:, 0]
    logs = np.log(ratios)
    mean, log_mean = weights @ ratios, weights @ logs
    return float(np.sqrt(weights @ (logs - log_mean) ** 2)), float(weights @ (ratios - mean) ** 2)


_ratios = jax.jit(
    lambda log_probs, rows, level: unit_ratios(log_probs, rows, 1, level), static_argnums=2
)


def closed_form(length: int, level: str) -> dict[str, float]:
    """Log deviation and variance of the ratio of independent tokens, and those of a lognormal.

        token         s            E[rho^2] - 1
        turn_mean     s / sqrt(m)  E[rho^(2/m)]^m - E[rho^(1/m)]^(2 m)
        turn_product  s sqrt(m)    E[rho^2]^m - 1

    A lognormal with log mean u and log deviation s has variance (exp(s^2) - 1) exp(2 u + s^2).
    """
    ratios = POLICY / BEHAVIOR
    mean = BEHAVIOR @ np.log(ratios)
    deviation = np.sqrt(BEHAVIOR @ (np.log(ratios) - mean) ** 2)
    count, power = {"token": (1, 1.0), "turn_mean": (length, 1.0 / length),
                    "turn_product": (length, 1.0)}[level]  # fmt: skip
    log_mean, log_deviation = count * power * mean, np.sqrt(count) * power * deviation
    first, second = (BEHAVIOR @ ratios ** (k * power) for k in (1, 2))
    square = log_deviation**2
    return {
        "log_deviation": float(log_deviation),
        "variance": float(second**count - first ** (2 * count)),
        "lognormal_variance": float(np.expm1(square) * np.exp(2 * log_mean + square)),
    }


def measure() -> tuple[list[Claim], list[dict[str, Any]]]:
    """Every level and length by enumeration and in closed form."""
    rows = []
    for level in LEVELS:
        for length in LENGTHS:
            deviation, variance = enumerated(length, level)
            rows.append({"level": level, "tokens": length, "enumerated_log_deviation": deviation,
                         "enumerated_variance": variance, **closed_form(length, level)})  # fmt: skip
    logs = max(abs(r["enumerated_log_deviation"] - r["log_deviation"]) for r in rows)
    variances = max(abs(r["enumerated_variance"] - r["variance"]) for r in rows)
    of = {(r["level"], r["tokens"]): r["enumerated_variance"] for r in rows}
    longer = [length for length in LENGTHS if length > 1]
    mean, product = ([of[level, n] / of["token", n] for n in longer] for level in LEVELS[1:])
    where = f"independent tokens, {', '.join(map(str, LENGTHS))} a turn"
    return [
        at_most("SORL, Eq. 4: log-ratio deviation s, s / sqrt(m), s sqrt(m), enumeration minus formula",
                where, len(rows), logs, 1e-12),
        at_most("SORL, Eq. 4: variance of the ratio, enumeration minus formula",
                where, len(rows), variances, 1e-12),
        at_most("variance of the geometric turn ratio over that of a token ratio (SORL)",
                where, len(mean), max(mean), 1.0),
        at_least("variance of the ratio of the whole action over that of a token ratio (derived here)",
                 where, len(product), min(product), 1.0),
    ], rows  # fmt: skip
