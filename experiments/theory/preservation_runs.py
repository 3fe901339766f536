"""Part of `experiments.preservation`: one run of one method on one broken MDP."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

import tabular
from rtpo_jax import core
from tabular.orders import sweeps
from tabular.orders.breakage import Breakage, broken_instance, misplaced_siblings, wrong_values
from tabular.orders.sampled import sample_groups, sampled_siblings

# Turns, true states, actions; the MDP has a state for every pair of true and seen.
SIZE = (3, 2, 3)
CLIP = sweeps.Clip(0.2, 0.2)
GROUPS, MEMBERS = 10, 6
TRUNKS, SIBLINGS = 12, 2


class Runs(NamedTuple):
    """What N runs need, all stacked: the broken MDP, the critic's error, a key, the breakage."""

    instance: tabular.Instance
    bias: jax.Array
    keys: jax.Array
    breakage: Breakage


@jax.jit
def draw_runs(keys: jax.Array, breakage: Breakage) -> Runs:
    """Runs of all pairs of a breakage (first axis) and a key (second axis)."""

    def one(breakage, key):
        mdp_key, bias_key, run_key = jax.random.split(key, 3)
        instance = broken_instance(mdp_key, *SIZE, breakage)
        shape = instance.contexts.shape
        bias = jax.random.normal(bias_key, (shape[0] * shape[1],), dtype=jnp.float64)
        return Runs(instance, bias.reshape(shape), jax.random.key_data(run_key), breakage)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(breakage, keys)


@functools.partial(jax.jit, static_argnames=("method", "data", "num_iterations"))
def share_closed(
    runs: Runs, trace_decay: float, *, method: str, data: str, num_iterations: int
) -> jax.Array:
    """Share of the gap between the uniform and the best policy after each iteration, [N, K+1].

    Args:
      runs: N of them.
      trace_decay: lambda of PPO's advantages; nothing to the other methods.
      method: "SeeUPO", "PPO" or "RTPO".
      data: "exact" or "sampled".
      num_iterations: K.
    """
    return jax.vmap(lambda run: _run(run, trace_decay, method, data, num_iterations))(runs)


def _run(run, trace_decay, method, data, num_iterations):
    mdp, policy, _ = run.instance

    def sweep(current, key):
        return _UPDATES[method, data](key, run, current, trace_decay)

    keys = jax.random.split(jax.random.wrap_key_data(run.keys), num_iterations)
    reached = sweeps.performances(mdp, policy, sweep, keys)
    best = mdp.start @ tabular.optimal_values(mdp)[0]
    return (reached - reached[0]) / (best - reached[0])


def _paths():
    turns, states, actions = SIZE
    return tabular.all_paths(turns, states**2, actions, early_end=False)


def _seeupo_exact(key, run, policy, trace_decay):
    del key, trace_decay
    order = tabular.reverse_order(SIZE[0])
    return sweeps.group_sweep(
        run.instance.mdp, policy, _paths(), order, CLIP, run.instance.contexts
    )


def _ppo_exact(key, run, policy, trace_decay):
    critic = wrong_values(key, run.instance.mdp, policy, run.bias, run.breakage)
    found = tabular.value_advantages(run.instance.mdp, _paths(), critic, trace_decay)
    weights = tabular.path_probabilities(run.instance.mdp, policy, _paths())
    return tabular.simultaneous(policy, _paths(), weights, found, *CLIP, run.instance.contexts)


def _rtpo_exact(key, run, policy, trace_decay):
    del key, trace_decay
    order = tabular.reverse_order(SIZE[0])
    return misplaced_siblings(
        run.instance.mdp, policy, order, *CLIP, run.instance.contexts, run.breakage.forks
    )


def _seeupo_sampled(key, run, policy, trace_decay):
    del trace_decay
    paths, ids = sample_groups(key, run.instance.mdp, policy, GROUPS, MEMBERS)
    returns = tabular.path_rewards(run.instance.mdp, paths).sum(1)
    found = core.group_relative(returns, ids, GROUPS)
    spread = jnp.broadcast_to(found[:, None], paths.states.shape)
    measure = jnp.full(len(ids), 1.0 / len(ids))
    order = tabular.reverse_order(SIZE[0])
    return tabular.sequential(policy, paths, measure, spread, order, *CLIP, run.instance.contexts)


def _ppo_sampled(key, run, policy, trace_decay):
    noise_key, sample_key = jax.random.split(key)
    paths, ids = sample_groups(sample_key, run.instance.mdp, policy, GROUPS, MEMBERS)
    critic = wrong_values(noise_key, run.instance.mdp, policy, run.bias, run.breakage)
    found = tabular.value_advantages(run.instance.mdp, paths, critic, trace_decay)
    measure = jnp.full(len(ids), 1.0 / len(ids))
    return tabular.simultaneous(policy, paths, measure, found, *CLIP, run.instance.contexts)


def _rtpo_sampled(key, run, policy, trace_decay):
    del trace_decay
    return sampled_siblings(
        key,
        run.instance.mdp,
        policy,
        TRUNKS,
        SIBLINGS,
        *CLIP,
        run.instance.contexts,
        run.breakage.forks,
    )


_UPDATES = {
    ("SeeUPO", "exact"): _seeupo_exact,
    ("SeeUPO", "sampled"): _seeupo_sampled,
    ("PPO", "exact"): _ppo_exact,
    ("PPO", "sampled"): _ppo_sampled,
    ("RTPO", "exact"): _rtpo_exact,
    ("RTPO", "sampled"): _rtpo_sampled,
}
