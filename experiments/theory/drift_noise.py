"""Noise of fresh continuations and small counterexamples about weights; parts of `theorem_drift`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, Counterexample, at_most
from experiments.theory.drift_continuations import (
    Pair,
    counterexample,
    estimates,
    pair_arrays,
    saved_pair,
)
from tabular.ratios.importance import clip_ratios, continuation_estimate, policy_ratios

CLIP = 0.2


@jax.jit
@jax.vmap
def fresh_noise(pair: Pair) -> dict[str, jax.Array]:
    """Var(Q-hat | s, a) of fresh continuations against m (1 - m), m = Q_h(s, a); of a stack, [M] each.

    Only the last turn of the pair's MDP pays. "binary": largest distance for a Bernoulli outcome;
    "bounded": largest excess over m (1 - m) where the outcome itself is in [0, 1].
    """
    outcome = jnp.zeros_like(pair.mdp.rewards).at[-1].set(pair.mdp.rewards[-1])
    mdp, policy = dataclasses.replace(pair.mdp, rewards=outcome), pair.policy
    mean = tabular.values(mdp, policy).Q
    ones, noise = jnp.ones_like(policy), outcome * (1.0 - outcome)
    binary = continuation_estimate(mdp, policy, policy, ones, noise).variance
    bounded = continuation_estimate(mdp, policy, policy, ones).variance
    bound = mean * (1.0 - mean)
    return {"binary": abs(binary - bound).max(), "bounded": (bounded - bound).max()}


def claims(pairs: Pair) -> tuple[list[Claim], dict[str, Counterexample]]:
    """Theorem 3(b), and what does not follow from it."""
    found, count = fresh_noise(pairs), len(pairs.policy)
    where = f"{count} random MDPs with early ends, every turn, state and action"
    saved = {
        "noise_rises": noise_rises(0.2, 0.4),
        "weighting_beats_fresh": weighting_beats_fresh(),
        "product_of_clips": product_of_clips(1.5, 0.5),
    }
    noise, weighting, product = (saved[name].numbers for name in saved)
    return [
        at_most("binary reward: Var(Q-hat | s, a) = p (1 - p) (RTPO, Theorem 3(b))",
                where, count, found["binary"].max(), 1e-12),
        at_most("reward in [0, 1]: Var(Q-hat | s, a) <= m (1 - m) (RTPO, Theorem 3(b))",
                where, count, found["bounded"].max(), 1e-12),
        at_most("a better downstream policy lowers the noise of Q-hat (RTPO, after Theorem 3(b))",
                "lock of 3 turns, p .2 -> .4",
                1, noise["noise after"] - noise["noise before"], 0.0, expected=False,
                counterexample="noise_rises"),
        at_most("regenerating has no more variance than the exact weight (not claimed by RTPO)",
                "two turns, rewards 1 and 1/4", 1,
                weighting["variance fresh"] - weighting["variance exact"], 0.0, expected=False,
                counterexample="weighting_beats_fresh"),
        at_most("product of clipped ratios = clip of the product (RTPO, Eq. 103, says it is not)",
                "two turns with ratios 1.5 and 0.5", 1,
                abs(product["product of clips"] - product["clip of product"]), 1e-3, expected=False,
                counterexample="product_of_clips"),
        at_most("product of clipped ratios <= 1 + clip (RTPO, Eqs. 14-16, says (1 + clip)^N)",
                "two turns with ratio 1.5", 1, product["largest product of clips"], 1.2 + 1e-3,
                expected=False, counterexample="product_of_clips"),
    ], saved  # fmt: skip


def noise_rises(before: float, after: float) -> Counterexample:
    """Right actions of the later turns of a lock become likelier: value and noise both rise."""
    mdp = tabular.lock(3)
    policies = {}
    for name, probability in (("behavior", before), ("policy", after)):
        right = np.array([before, probability, probability])[:, None, None]
        policies[name] = np.broadcast_to(np.concatenate([right, 1.0 - right], -1), (3, 2, 2))
    return _saved(
        "Improving turns 1 and 2 moves the success probability of a continuation from near 0 toward "
        "1/2: performance and the noise of Q-hat at turn 0 rise together.",
        mdp, policies, "noise",
    )  # fmt: skip


def weighting_beats_fresh() -> Counterexample:
    """A recorded policy that is the ideal proposal: behaviour proportional to policy times reward."""
    transitions, rewards = np.ones((2, 1, 2, 1)), np.zeros((2, 1, 2))
    rewards[1] = [1.0, 0.25]
    mdp = tabular.TurnMDP(transitions, rewards, np.ones(1))
    half = np.full((2, 1, 2), 0.5)
    policies = {"behavior": np.stack([half[0], [[0.8, 0.2]]]), "policy": half}
    return _saved(
        "The exactly weighted stale continuation has variance 0, the regenerated one has not: weight "
        "times reward is the same for both actions.",
        mdp, policies, "weighting",
    )  # fmt: skip


def product_of_clips(first: float, second: float) -> Counterexample:
    """Two turns of one state whose first actions have the given ratios."""
    mdp = tabular.TurnMDP(np.ones((2, 1, 2, 1)), np.zeros((2, 1, 2)), np.ones(1))
    policy = np.array([[[first / 2, 1.0 - first / 2]], [[second / 2, 1.0 - second / 2]]])
    policies = {"behavior": np.full((2, 1, 2), 0.5), "policy": policy}
    return _saved(
        "Clipping each ratio and multiplying is not clipping the product, and stays inside "
        "[(1 - clip)^N, (1 + clip)^N] only.",
        mdp, policies, "product",
    )  # fmt: skip


def _saved(statement, mdp, policies, kind):
    pair = Pair(mdp, policies["behavior"], policies["policy"])
    return counterexample(statement, pair_arrays(pair), {"kind": kind}, REPLAYS[kind])


def replay_noise(saved: Counterexample) -> dict[str, float]:
    """Performance, noise and squared signal-to-noise ratio at the first turn, before and after."""
    pair = saved_pair(saved)
    numbers = {}
    for name, policy in (("before", pair.behavior), ("after", pair.policy)):
        performance, signal, noise = _noise_numbers(pair.mdp, policy)
        numbers[f"performance {name}"] = float(performance)
        numbers[f"noise {name}"] = float(noise)
        numbers[f"signal to noise {name}"] = float(signal / noise)
    return numbers


@jax.jit
def _noise_numbers(mdp, policy):
    spread = continuation_estimate(mdp, policy, policy, jnp.ones_like(policy)).variance
    signal = (policy * tabular.advantages(mdp, policy) ** 2)[0, 0].sum()
    return tabular.performance(mdp, policy), signal, (policy * spread)[0, 0].sum()


def replay_weighting(saved: Counterexample) -> dict[str, float]:
    """Variance of Q-hat at the first turn, regenerated and weighted."""
    found = jax.jit(estimates)(saved_pair(saved), CLIP)
    return {f"variance {m}": float(found[m].variance[0, 0, 0]) for m in ("fresh", "exact", "stale")}


def replay_product(saved: Counterexample) -> dict[str, float]:
    """Products along the path that takes the first action twice, and the largest of any path."""
    pair = saved_pair(saved)
    ratios = np.asarray(policy_ratios(pair.mdp, pair.policy, pair.behavior))
    clipped = np.asarray(clip_ratios(ratios, CLIP, CLIP))
    product = ratios[:, 0, 0].prod()
    return {
        "product": float(product),
        "clip of product": float(np.clip(product, 1.0 - CLIP, 1.0 + CLIP)),
        "product of clips": float(clipped[:, 0, 0].prod()),
        "largest product of clips": float(clipped.max(-1).prod()),
    }


REPLAYS = {"noise": replay_noise, "weighting": replay_weighting, "product": replay_product}
