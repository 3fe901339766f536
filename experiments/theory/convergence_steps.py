"""Theorem 1 of RTPO without its step sizes (A8): claims, and one coin that shows each half of it.

Used by `experiments.theory.convergence_learning`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, Counterexample, at_most, mdp_arrays
from tabular.learning.q_learning import Steps, step_moments, turnwise

CONSTANT = Steps(0.05, 0.0)
SUMMABLE = Steps(1.0, 2.0, 1.0)  # 1/(i+1)^2


def violations(plateau: list[dict], where: str, runs: int) -> list[Claim]:
    """What constant and summable steps end with, from the rows of the table of step sizes."""
    constant = [row for row in plateau if row["schedule"].startswith("constant")]
    alphas, levels = (np.array([row[k] for row in constant])
                      for k in ("constant", "error2_over_variance"))  # fmt: skip
    slope = np.polyfit(np.log(alphas / (2 - alphas)), np.log(levels), 1)[0]
    (summable,) = (row for row in plateau if row["schedule"] == "1/(i+1)^2")
    return [
        at_most("RTPO Thm 1, A8 violated: error with constant steps vanishes",
                f"{where}; alpha = 0.05", runs, levels[0], 0.01, expected=False,
                counterexample="constant_steps"),
        at_most("plateau of error^2 is proportional to alpha / (2 - alpha) (derived here)",
                f"{where}; fitted exponent minus 1", runs, abs(slope - 1), 0.1),
        at_most("RTPO Thm 1, A8 violated: the start is forgotten with alpha = 1/(i+1)^2",
                f"{where}; share of the start left, prod (1 - alpha) -> 1/2", runs,
                summable["share_of_start_left"] - 5 * summable["standard_error"], 0.1,
                expected=False, counterexample="summable_steps"),
    ]  # fmt: skip


def coins() -> dict[str, Counterexample]:
    """One state, one action, learned from 4096 episodes with each kind of bad step."""
    return {
        "constant_steps": _coin(
            "One action that pays 0 or 1 by a fair coin. With alpha = 0.05 the squared error stays "
            "at alpha / (2 - alpha) of Var(Y) = 1/4; with 1/i it falls like 1/i.",
            0.5, CONSTANT, 64),
        "summable_steps": _coin(
            "One action that always pays 1, table at 0 first. Steps 1/(i+1)^2 sum to less than 1 "
            "and leave half of the start for ever: the learner ends at 1/2.", 1.0, SUMMABLE, 1),
    }  # fmt: skip


def coin_numbers(arrays: dict, settings: dict) -> dict[str, float]:
    """Squared error of learners after all episodes, and by the law of `tabular.learning`."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    steps = Steps(*(float(settings[name]) for name in Steps._fields))
    samples = settings["num_samples"]
    key = jax.random.wrap_key_data(jnp.asarray(arrays["key"], jnp.uint32))
    table = np.asarray(_tables(jax.random.split(key, settings["num_runs"]), mdp, steps, samples))
    mean = float(mdp.rewards.item())
    numbers = {"squared_error": ((table - mean) ** 2).mean(), "learned": table.mean()}
    for name, schedule in (("", steps), ("_with_1/i", Steps())):
        memory, noise = (np.asarray(part)[-1] for part in step_moments(schedule, samples))
        numbers[f"expected_squared_error{name}"] = (memory * mean) ** 2 + noise * mean * (1 - mean)
    return {name: float(number) for name, number in numbers.items()}


def _coin(statement, success, steps, num_runs):
    mdp = tabular.TurnMDP(np.zeros((1, 1, 1, 1)), np.full((1, 1, 1), success), np.ones(1))
    arrays = {**mdp_arrays(mdp), "key": jax.random.key_data(jax.random.key(0))}
    settings = {"kind": "coin", **steps._asdict(), "num_samples": 4096, "num_runs": num_runs}
    return Counterexample(statement=statement, arrays=arrays, settings=settings,
                          numbers=coin_numbers(arrays, settings))  # fmt: skip


@partial(jax.jit, static_argnames="num_samples")
def _tables(keys, mdp, steps, num_samples):
    """Tables [R] of learners from 0."""
    here = jnp.zeros((1, 1), int)

    def one(key):
        learned = turnwise(key, mdp, jnp.ones((1, 1, 1)), here[0], here, steps, 0.0,
                           num_samples=num_samples)  # fmt: skip
        return learned.action_values[0, 0, 0]

    return jax.vmap(one)(keys)
