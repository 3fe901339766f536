"""How faithful the compound ratio of SeeUPO is when parameters are shared or it is not a product.

SeeUPO (arXiv 2602.06554, Eqs. 7, 8) carries M_h = r_h M_{h+1}, M_H = A, from the last turn to the
first, with r_h the ratio of the whole action of turn h after its update over the start of the
iteration. Then E_old[M_0] = E_new[A]: the data of the old policy say how good the new one is. Three
things can break it:

    geometric mean   the ratio of an action of T tokens is replaced by its T-th root;
    clamps           factor and accumulated product are kept within 1 -+ clamp;
    shared weights   a turn's probabilities change again while earlier turns are updated, and if the
                     denominator is refreshed before each stage, the change before it is lost too.

The authors' released code has the first two and the refreshed denominator.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rtpo_jax import core
from tabular.exact import performance
from tabular.mdp import TurnMDP
from tabular.paths import Paths, path_probabilities
from tabular.policy_classes import PolicyClass
from tabular.ratios.importance import clip_ratios
from tabular.updates import ascend, group_advantages


class Rule(NamedTuple):
    """How compound ratios are formed; numbers and flags may be traced.

    Attributes:
      power: log-ratio of an action = power times the sum over its tokens; 1 for the product, 1 / T
        for the geometric mean of T tokens.
      clamp_low: distance of the lower clamp from 1, of each factor and of the product; 1 for none.
      clamp_high: distance of the upper clamp from 1; infinite for none.
      refreshed: denominators are those before the stage, not those before the iteration.
    """

    power: float
    clamp_low: float
    clamp_high: float
    refreshed: bool


class Fidelity(NamedTuple):
    """One iteration, and how far its compound ratio is from the truth.

    Attributes:
      params: parameters after the iteration.
      gain: J(new) - J(old), which is E_new[A].
      estimate: E_old[M_0], what the compound ratio says the gain is.
      deviation: E_old |M_0 / A - prod_h pi_new / pi_old|.
    """

    params: jax.Array
    gain: jax.Array
    estimate: jax.Array
    deviation: jax.Array


def compound_iteration(
    mdp: TurnMDP,
    family: PolicyClass,
    params: jax.Array,
    paths: Paths,
    rule: Rule,
    learning_rate: float,
    num_steps: int,
    clip_low: float,
    clip_high: float,
) -> Fidelity:
    """Update the turns from last to first by gradient ascent on the surrogate, carrying M.

        stage h:  ascend E_old[min(w_h M, clip(w_h) M)],   then   M <- clamp(M clamp(w_h))

    The stage's own ratio w_h follows the rule (its power and its denominator) without clamps, and
    data are those of the start with their exact probabilities.

    Args:
      mdp: the MDP.
      family: policy class; what its parameters share decides what moves after its stage.
      params: parameters at the start.
      paths: full-length episodes; one that ended has ratio 1.
      rule: how ratios are formed.
      learning_rate: of each step.
      num_steps: steps a stage.
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.

    Returns:
      `Fidelity`.
    """
    start = family.policy(params)
    weights = path_probabilities(mdp, start, paths)
    credited = group_advantages(mdp, start, paths)[:, 0]
    before, current, carried = params, params, jnp.ones_like(weights)
    for turn in reversed(range(mdp.num_turns)):
        anchor = jnp.where(rule.refreshed, current, before)
        ratios = partial(_turn_ratios, family, anchor, paths, turn, rule.power)

        def objective(params, ratios=ratios, carried=carried):
            found = core.clipped_surrogate(ratios(params), credited * carried, clip_low, clip_high)
            return core.weighted_sum(found, weights)

        current = ascend(objective, current, learning_rate, num_steps)
        factor = clip_ratios(ratios(current), rule.clamp_low, rule.clamp_high)
        carried = clip_ratios(carried * factor, rule.clamp_low, rule.clamp_high)
    return _judge(mdp, family, (params, current), paths, credited, carried)


def _judge(mdp, family, parameters, paths, credited, carried):
    """Compare the compound ratio with the ratio of the policies before and after."""
    start, reached = (family.policy(params) for params in parameters)
    weights = path_probabilities(mdp, start, paths)
    possible = jnp.where(weights > 0, weights, 1.0)
    true_ratios = path_probabilities(mdp, reached, paths) / possible
    return Fidelity(
        parameters[1],
        performance(mdp, reached) - performance(mdp, start),
        core.weighted_sum(credited * carried, weights),
        core.weighted_sum(jnp.abs(carried - true_ratios), weights),
    )


def _turn_ratios(family, anchor, paths, turn, power, params):
    """Ratio [M] of the action of one turn, from the log-ratios of its tokens."""
    changes = (family.token_log_probs(params) - family.token_log_probs(anchor))[turn]
    tokens = changes[paths.states[:, turn], paths.actions[:, turn]]
    ids = jnp.where(paths.turn_mask[:, turn], 0, -1)[:, None]
    log_ratios = core.turn_log_ratios(tokens, jnp.broadcast_to(ids, tokens.shape), 1, mean=False)
    return core.ratios(power * log_ratios[:, 0])
