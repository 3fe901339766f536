"""Families of tasks: success probabilities and variances in closed form."""

import jax
import numpy as np
import pytest
from scipy import stats

import tabular
from tabular.moments import variance_decomposition
from tabular.regimes import families

P = 0.7
decompose = jax.jit(variance_decomposition)
performance = jax.jit(tabular.performance)


def success(case):
    return float(performance(*case))


def variance(case):
    return float(decompose(*case).total)


def every_case():
    lock = families.lock_case(4, P)
    return {
        "lock": lock,
        "ends": families.lock_case(4, P, ends_at_error=True),
        "tools": families.lock_case(4, P, tool_failure=0.2),
        "chain": families.chain_case(5, 3, P, setback=1),
        "late": families.late_case(5, 2, P, doom=0.3),
        "paid": families.paid_at_once_case(3, P),
        "luck": families.with_additive_luck(lock, 1, 2.0),
        "fate": families.with_fate(lock, 0, 0.3, 0.2),
        "walk": families.with_random_walk(lock, 2, 0.5),
    }


NAMES = ("lock", "ends", "tools", "chain", "late", "paid", "luck", "fate", "walk")


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_never_sees_the_state(name):
    policy = np.asarray(every_case()[name].policy)
    assert (policy == policy[:, :1]).all()
    tabular.check_policy(*every_case()[name])


def test_locks():
    assert abs(success(families.lock_case(4, P)) - P**4) < 1e-12
    assert abs(success(families.lock_case(3, [0.9, 0.5, 0.2])) - 0.9 * 0.5 * 0.2) < 1e-12
    # The last action is an answer, not a call: three calls can fail.
    assert abs(success(families.lock_case(4, P, tool_failure=0.2)) - P**4 * 0.8**3) < 1e-12
    ends = families.lock_case(4, P, ends_at_error=True)
    assert abs(success(ends) - P**4) < 1e-12
    turns = float(tabular.occupancy(*ends).sum())
    assert abs(turns - (1 + P + P**2 + P**3)) < 1e-12


def test_a_lock_is_the_named_instance():
    mdp, policy = families.lock_case(4, P)
    other = tabular.lock(4)
    np.testing.assert_array_equal(mdp.transitions, other.transitions)
    np.testing.assert_array_equal(mdp.rewards, other.rewards)
    np.testing.assert_allclose(policy, tabular.lock_policy(other, P), rtol=1e-15)


def test_chain_without_setbacks_is_binomial():
    """It succeeds with at least 3 right actions of 5, and lasts until the third (or turn 5)."""
    case = families.chain_case(5, 3, P)
    assert abs(success(case) - stats.binom.sf(2, 5, P)) < 1e-12
    lengths = 1 + sum(stats.binom.cdf(2, turn, P) for turn in range(1, 5))
    assert abs(float(tabular.occupancy(*case).sum()) - lengths) < 1e-12


def test_chain_with_setbacks_by_enumeration():
    total = 0.0
    for word in np.ndindex((2,) * 5):
        state, weight = 0, 1.0
        for right in word:
            weight *= P if right else 1 - P
            if state < 3:
                state = state + 1 if right else max(state - 2, 0)
        total += weight * (state == 3)
    assert abs(success(families.chain_case(5, 3, P, setback=2)) - total) < 1e-12


def test_only_late_turns_matter():
    case = families.late_case(6, 2, P, doom=0.3)
    assert abs(success(case) - 0.7 * P**2) < 1e-12
    advantages = np.asarray(tabular.advantages(*case))
    assert abs(advantages[:4]).max() < 1e-15
    assert abs(advantages[4:]).max() > 0.1
    reached = np.asarray(tabular.occupancy(*case))[:, 0]
    np.testing.assert_allclose(reached[1:5] / reached[:4], 0.7 ** (1 / 4), rtol=1e-12)


def test_paid_at_once():
    case = families.paid_at_once_case(3, P)
    assert abs(success(case) - 3 * P) < 1e-12
    assert abs(variance(case) - 3 * P * (1 - P)) < 1e-12


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_additive_luck_is_fixed_between_its_turn_and_the_next(turn):
    lock = families.lock_case(4, P)
    lucky = families.with_additive_luck(lock, turn, 2.0)
    plain, shifted = decompose(*lock), decompose(*lucky)
    assert abs(success(lucky) - P**4) < 1e-12
    assert abs(float(shifted.total - plain.total) - 4.0) < 1e-12
    drawn = 4.0 * (np.arange(4) > turn)
    np.testing.assert_allclose(shifted.upstream - plain.upstream, drawn, atol=1e-12)
    np.testing.assert_allclose(shifted.turn, plain.turn, atol=1e-12)


def test_fate_and_scaled_luck():
    lock = families.lock_case(4, P)
    fate = families.with_fate(lock, 1, 0.3, 0.2)
    assert abs(success(fate) - (0.2 + 0.5 * P**4)) < 1e-12
    assert abs(variance(fate) - success(fate) * (1 - success(fate))) < 1e-12
    # Doomed keeps state order: luck 0 is doomed, 1 is won.
    last = np.asarray(fate.mdp.rewards)[-1].reshape(2, 3, 2)
    np.testing.assert_array_equal(last[0], [[0, 0], [1, 1], [1, 0]])
    scaled = families.with_luck(lock, 0, (0.4, 0.6), shifts=(0, 0), scales=(1.0, 3.0))
    assert abs(success(scaled) - 2.2 * P**4) < 1e-12


def test_random_walk():
    """After 3 steps of +-0.5 the added variance is 3/4, a third of it per step."""
    lock = families.lock_case(5, P)
    walk = families.with_random_walk(lock, 3, 0.5)
    plain, walked = decompose(*lock), decompose(*walk)
    added = np.asarray(walked.upstream - plain.upstream)
    np.testing.assert_allclose(added, [0, 0.25, 0.5, 0.75, 0.75], atol=1e-12)
    assert abs(success(walk) - P**5) < 1e-12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: families.lock_case(3, 1.2), "success=1.2"),
        (lambda: families.lock_case(3, [0.5, 0.5]), "one per turn"),
        (lambda: families.lock_case(0, 0.5), "num_turns is 0"),
        (lambda: families.lock_case(3, 0.5, tool_failure=-0.1), "tool_failure=-0.1"),
        (lambda: families.chain_case(3, 0, 0.5), "goal is 0"),
        (lambda: families.chain_case(3, 2, 0.5, setback=-1), "setback is -1"),
        (lambda: families.late_case(3, 4, 0.5), "critical is 4"),
        (lambda: families.late_case(3, 3, 0.5, doom=0.1), "all 3 turns are critical"),
        (lambda: families.late_case(3, 1, 0.5, doom=2.0), "doom=2.0"),
        (lambda: families.with_additive_luck(families.lock_case(3, P), 2, 1.0), "turn is 2"),
        (lambda: families.with_fate(families.lock_case(3, P), 0, 0.7, 0.7), "probabilities"),
        (lambda: families.with_random_walk(families.lock_case(3, P), 3, 1.0), "turns is 3"),
        (
            lambda: families.with_luck(
                families.lock_case(3, P), 0, (1.0,), shifts=(0, 1), scales=(1,)
            ),
            "lists of one length",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
