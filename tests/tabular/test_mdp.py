"""The MDP container: what it refuses, in which words, and how it behaves as a pytree."""

import dataclasses
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tabular
from tabular import TurnMDP, check_policy


def _arrays():
    """H 2, S 3, A 2, everything uniform."""
    return {
        "transitions": np.full((2, 3, 2, 3), 1 / 3),
        "rewards": np.zeros((2, 3, 2)),
        "start": np.full(3, 1 / 3),
    }


def _edit(field, index, value):
    arrays = _arrays()
    arrays[field][index] = value
    return arrays


MALFORMED = [
    ({"rewards": np.zeros((3, 2))}, "rewards has shape (3, 2) but must be [H, S, A]"),
    ({"rewards": np.zeros((0, 3, 2))}, "rewards has shape (0, 3, 2) but must be [H, S, A]"),
    (
        {"transitions": np.full((2, 3, 2, 4), 0.25)},
        "transitions has shape (2, 3, 2, 4) but rewards of shape (2, 3, 2) call for "
        "[H, S, A, S] = (2, 3, 2, 3)",
    ),
    ({"transitions": np.full((1, 3, 2, 3), 1 / 3)}, "transitions has shape (1, 3, 2, 3)"),
    ({"start": np.full(2, 0.5)}, "start has shape (2,) but rewards"),
    ({"start": np.full((2, 3), 1 / 3)}, "start has shape (2, 3) but rewards"),
    ({"rewards": np.zeros((2, 3, 2), np.float32)}, "rewards has dtype float32"),
    ({"start": np.full(3, 1 / 3, np.float32)}, "start has dtype float32"),
    ({"transitions": np.full((2, 3, 2, 3), 1 / 3, complex)}, "transitions has dtype complex128"),
    (_edit("rewards", (1, 2, 0), np.nan), "rewards[1, 2, 0] is nan: replace it"),
    (_edit("rewards", (0, 1, 1), -np.inf), "rewards[0, 1, 1] is -inf: replace it"),
    (_edit("transitions", (0, 2, 1, 0), np.inf), "transitions[0, 2, 1, 0] is inf: replace it"),
    (_edit("transitions", (1, 0, 1), np.nan), "transitions[1, 0, 1, 0] is nan: replace it"),
    (_edit("start", 2, np.nan), "start[2] is nan: replace it"),
    (_edit("transitions", (1, 2, 0), [-0.25, 1.0, 0.0]), "transitions[1, 2, 0, 0] is -0.25: a"),
    (_edit("transitions", (0, 1, 0), [0.5, 0.5, 0.25]), "transitions[0, 1, 0] sums to 1.25: "),
    (_edit("start", slice(None), [1.5, -0.5, 0.0]), "start[1] is -0.5: a probability cannot"),
    (_edit("start", slice(None), [0.5, 0.25, 0.0]), "start sums to 0.75: probabilities must"),
    (_edit("start", slice(None), [0.5, 0.5, 0.5]), "start sums to 1.5: "),
    (_edit("start", 0, 1 / 3 + 1e-8), "start sums to 1.00000001"),
    (_edit("start", 0, 1 / 3 - 1e-8), "start sums to 0.9999999"),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED)
def test_malformed_arrays_are_refused_by_name_place_and_value(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TurnMDP(**{**_arrays(), **change})


def test_well_formed_arrays_are_accepted_with_deficits_and_rounding():
    arrays = _arrays()
    arrays["transitions"][0, 0, 0] = 0.0  # ends for certain
    arrays["transitions"][1, 1, 1] = [0.1, 0.2, 0.3]
    arrays["start"][0] += 1e-13
    mdp = TurnMDP(**arrays)
    assert (mdp.num_turns, mdp.num_states, mdp.num_actions) == (2, 3, 2)
    for field in dataclasses.fields(mdp):
        array = getattr(mdp, field.name)
        assert isinstance(array, jax.Array)
        assert array.dtype == jnp.float64
        np.testing.assert_array_equal(array, arrays[field.name])


BAD_POLICIES = [
    (np.full((2, 3), 0.5), "policy has shape (2, 3) but the MDP has [H, S, A] = (2, 3, 2)"),
    (np.full((2, 3, 3), 1 / 3), "policy has shape (2, 3, 3)"),
    (np.full((2, 3, 2), 0.5, np.float16), "policy has dtype float16"),
    (np.full((2, 3, 2), 0.5, np.float32), "policy has dtype float32"),
    (np.full((2, 3, 2), np.nan), "policy[0, 0, 0] is nan"),
    (np.full((2, 3, 2), 0.25), "policy[0, 0] sums to 0.5"),
    (np.full((2, 3, 2), 0.75), "policy[0, 0] sums to 1.5"),
    (np.tile([1.5, -0.5], (2, 3, 1)), "policy[0, 0, 1] is -0.5"),
]
USERS = [
    check_policy,
    tabular.values,
    tabular.occupancy,
    tabular.performance,
    tabular.advantages,
    tabular.policy_gradient,
    tabular.trajectories,
]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(("policy", "message"), BAD_POLICIES)
def test_malformed_policies_are_refused_by_every_function(user, policy, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        user(TurnMDP(**_arrays()), policy)


def test_check_policy_points_at_the_first_bad_row_and_returns_a_good_policy():
    policy = np.full((2, 3, 2), 0.5)
    assert isinstance(check_policy(TurnMDP(**_arrays()), policy), jax.Array)
    policy[1, 2] = [0.5, 0.25]
    with pytest.raises(ValueError, match=re.escape("policy[1, 2] sums to 0.75")):
        check_policy(TurnMDP(**_arrays()), policy)


def test_it_is_frozen_and_compared_by_identity():
    mdp = TurnMDP(**_arrays())
    with pytest.raises(dataclasses.FrozenInstanceError):
        mdp.start = mdp.start
    assert mdp == mdp and mdp != TurnMDP(**_arrays())
    with pytest.raises(ValueError, match="start sums to 0"):
        dataclasses.replace(mdp, start=jnp.zeros(3))


def test_pytree_rebuilding_checks_nothing_and_names_its_leaves():
    mdp = TurnMDP(**_arrays())
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), mdp, mdp)
    assert stacked.transitions.shape == (2, 2, 3, 2, 3)
    assert (stacked.num_turns, stacked.num_states, stacked.num_actions) == (2, 3, 2)
    assert jax.eval_shape(lambda x: x, mdp).start.shape == (3,)
    assert jax.tree.map(lambda _: "leaf", mdp).start == "leaf"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(mdp)]
    assert paths == [".transitions", ".rewards", ".start"]


@pytest.mark.parametrize(
    "user", [*USERS, lambda m, _: tabular.optimal_values(m), lambda m, _: tabular.optimal_policy(m)]
)
def test_a_stack_of_mdps_is_refused_outside_vmap(user):
    mdp = TurnMDP(**_arrays())
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), mdp, mdp)
    with pytest.raises(ValueError, match="jax.vmap"):
        user(stacked, np.full((2, 2, 3, 2), 0.5))


def test_under_jit_shapes_are_checked_and_values_are_not():
    def build(start):
        return TurnMDP(**{**_arrays(), "start": start}).start

    np.testing.assert_array_equal(jax.jit(build)(jnp.full(3, 0.5)), np.full(3, 0.5))
    with pytest.raises(ValueError, match="start has shape"):
        jax.jit(build)(jnp.full(4, 0.25))
    with pytest.raises(ValueError, match="start has dtype float32"):
        jax.jit(build)(jnp.full(3, 1 / 3, jnp.float32))


def test_without_float64_everything_is_refused():
    mdp, policy = TurnMDP(**_arrays()), np.full((2, 3, 2), 0.5)
    key = jax.random.key(0)
    with jax.enable_x64(False):
        for call in (
            lambda: TurnMDP(**_arrays()),
            lambda: tabular.values(mdp, policy),
            lambda: tabular.optimal_values(mdp),
            lambda: tabular.random_mdp(key, 2, 2, 2),
            lambda: tabular.random_policy(key, mdp),
            lambda: tabular.lock(2),
            lambda: tabular.uniform_policy(mdp),
            tabular.toy_reverse_order,
        ):
            with pytest.raises(ValueError, match="needs float64 but jax_enable_x64 is False"):
                call()


def test_importing_the_package_switches_float64_on():
    program = (
        "import jax\nassert not jax.config.jax_enable_x64\n"
        "import tabular\nassert jax.config.jax_enable_x64\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_package_example_holds():
    import doctest

    result = doctest.testmod(tabular)
    assert result.attempted > 0 and result.failed == 0


def test_whole_numbers_are_exact_and_accepted():
    """0/1 rewards, a fixed start and a deterministic policy, written with integers."""
    transitions = np.zeros((1, 2, 2, 2), int)
    transitions[..., 0] = 1
    mdp = tabular.TurnMDP(transitions, np.array([[[0, 1], [1, 0]]]), np.array([1, 0]))
    assert mdp.rewards.dtype == mdp.start.dtype == np.float64
    policy = np.array([[[False, True], [True, False]]])
    assert float(tabular.performance(mdp, policy)) == 1.0
