"""The turn-boundary MDP: three arrays, checked once when they are put together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

# Sums this close to 1 count as 1: far above float64 rounding of a normalised row, far below the
# 1e-8 that a row normalised in float32 would show.
SUM_TOLERANCE = 1e-10


@dataclasses.dataclass(frozen=True, eq=False)
class TurnMDP:
    """A finite-horizon decision process whose steps are turns, without a discount.

        s_0 ~ start,   a_h ~ pi_h(. | s_h),   r_h = rewards[h, s_h, a_h],
        s_{h+1} ~ transitions[h, s_h, a_h],   h = 0..H-1

    A transition row may sum to less than 1. The deficit is the probability that the episode ends
    after that action, and everything later counts 0, so a discount g < 1 is `g * transitions`.
    After the last turn every episode ends: transitions[H-1] are checked but change nothing.
    States are shared by all turns; use different indices for states that must not be confused.

    This is the turn-boundary MDP of RTPO (arXiv 2608.18682) with discount 1 and with rewards that
    are the means given state and action: a Bernoulli outcome is entered as its probability.

    A pytree: `jit` takes it as an argument, and `vmap` maps over MDPs stacked with
    `jax.tree.map(lambda *leaves: jnp.stack(leaves), *mdps)` or made by a mapped constructor.
    Shapes and dtypes are always checked at construction, values only where they are concrete
    (inside `jit`, `grad` or `vmap` they are not known). JAX's own rebuilding of the pytree checks
    nothing. Two MDPs compare by identity.

    Attributes:
      transitions: [H, S, A, S] probabilities of the next state, float64, rows sum to at most 1.
      rewards: [H, S, A] reward after the action, float64.
      start: [S] probabilities of the first state, float64, sum 1.

    Raises:
      ValueError: names the field, the first offending index, its value and the fix, when ranks or
        sizes disagree, a dtype is not float64 (or JAX's float64 is off), a number is not finite,
        a probability is negative, or a sum is wrong by more than `SUM_TOLERANCE`.
    """

    transitions: jax.Array
    rewards: jax.Array
    start: jax.Array

    def __post_init__(self):
        require_float64_mode()
        for field in dataclasses.fields(self):
            checked = _float64_array(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, checked)
        _check_shapes(self.transitions, self.rewards, self.start)
        _check_finite("rewards", self.rewards)
        _check_sub_probabilities("transitions", self.transitions)
        _check_probabilities("start", self.start)

    @property
    def num_turns(self) -> int:
        """H, the horizon."""
        return self.rewards.shape[-3]

    @property
    def num_states(self) -> int:
        """S, the number of boundary states."""
        return self.rewards.shape[-2]

    @property
    def num_actions(self) -> int:
        """A, the number of actions in every state."""
        return self.rewards.shape[-1]


def check_policy(mdp: TurnMDP, policy: jax.Array) -> jax.Array:
    """Return `policy` as a JAX array after checking that it is a policy of `mdp`.

    Args:
      mdp: one MDP; a stack of them is refused outside `vmap`.
      policy: [H, S, A] action probabilities, float64, each row sums to 1, also in states that are
        never reached. Values are checked only where they are concrete.

    Returns:
      The policy, [H, S, A].

    Raises:
      ValueError: as for `TurnMDP`, naming the offending index of `policy`.
    """
    check_mdp(mdp)
    policy = _float64_array("policy", policy)
    if policy.shape != mdp.rewards.shape:
        raise ValueError(
            f"policy has shape {policy.shape} but the MDP has [H, S, A] = {mdp.rewards.shape}: "
            "give one row of action probabilities for every turn and state"
        )
    _check_probabilities("policy", policy)
    return policy


def check_mdp(mdp: TurnMDP) -> None:
    """Raise ValueError for a stack of MDPs outside `vmap`, and where float64 is off."""
    require_float64_mode()
    if mdp.rewards.ndim != 3:
        raise ValueError(
            f"mdp.rewards has shape {mdp.rewards.shape}, not [H, S, A]: for a stack of MDPs map "
            "the function with jax.vmap"
        )


def check_integer(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raise ValueError unless `value` is an integer from `low` to `high` (None: no upper end)."""
    if (
        not isinstance(value, int | np.integer)
        or value < low
        or (high is not None and value > high)
    ):
        upper = "upwards" if high is None else f"to {high}"
        raise ValueError(f"{name} is {value}: choose an integer from {low} {upper}")


def is_concrete(array) -> bool:
    """Whether the numbers are known now, that is, outside `jit`, `grad` and `vmap`."""
    return not isinstance(array, jax.core.Tracer)


def require_float64_mode() -> None:
    """Raise ValueError where JAX would turn float64 arrays into float32 ones."""
    if not jax.config.jax_enable_x64:
        raise ValueError(
            "tabular needs float64 but jax_enable_x64 is False here: importing tabular switches it "
            "on, so leave the jax.enable_x64(False) block or the code that switched it off again"
        )


def _float64_array(name, array):
    if not isinstance(array, jax.Array):
        array = np.asarray(array)
    if array.dtype.kind in "iub":  # 0/1 rewards, one-hot policies: exact in float64
        array = array.astype(np.float64)
    if array.dtype != np.float64:
        raise ValueError(
            f"{name} has dtype {array.dtype} but exact results need float64: build it in float64 "
            "(a cast of probabilities normalised in float32 no longer sums to 1)"
        )
    return jnp.asarray(array)


def _check_shapes(transitions, rewards, start):
    if rewards.ndim != 3 or 0 in rewards.shape:
        raise ValueError(
            f"rewards has shape {rewards.shape} but must be [H, S, A] with every size at least 1: "
            "build MDPs one at a time and stack the finished ones with jax.tree.map"
        )
    num_states = rewards.shape[1]
    for name, array, expected, letters in (
        ("transitions", transitions, (*rewards.shape, num_states), "[H, S, A, S]"),
        ("start", start, (num_states,), "[S]"),
    ):
        if array.shape != expected:
            raise ValueError(
                f"{name} has shape {array.shape} but rewards of shape {rewards.shape} call for "
                f"{letters} = {expected}: make the sizes agree"
            )


def _check_finite(name, array):
    if is_concrete(array):
        array = np.asarray(array)
        _refuse(~np.isfinite(array), name, "is", array, "replace it by a finite number")


def _check_sub_probabilities(name, array):
    """Check rows along the last axis: non-negative, sum at most 1."""
    _check_finite(name, array)
    if is_concrete(array):
        array = np.asarray(array)
        sums = array.sum(-1)
        _refuse(array < 0, name, "is", array, "a probability cannot be negative, raise it to 0")
        fix = "probabilities sum to at most 1 (less where the episode may end), normalise the row"
        _refuse(sums > 1 + SUM_TOLERANCE, name, "sums to", sums, fix)


def _check_probabilities(name, array):
    """Check rows along the last axis: non-negative, sum exactly 1 up to rounding."""
    _check_sub_probabilities(name, array)
    if is_concrete(array):
        sums = np.asarray(array).sum(-1)
        fix = "probabilities must sum to 1, normalise the row"
        _refuse(sums < 1 - SUM_TOLERANCE, name, "sums to", sums, fix)


def _refuse(bad, name, verb, found, fix):
    """Raise for the first True of `bad`, quoting the number at the same place in `found`."""
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = str(list(index)) if index else ""
        raise ValueError(f"{name}{place} {verb} {found[index]}: {fix}")


def _flatten(mdp):
    keys = [jax.tree_util.GetAttrKey(field.name) for field in dataclasses.fields(mdp)]
    return [(key, getattr(mdp, key.name)) for key in keys], None


def _unflatten(_, children):
    # Not through __init__: JAX rebuilds pytrees with stacked arrays, shapes or placeholders as
    # leaves, and none of those would pass the checks.
    mdp = object.__new__(TurnMDP)
    for field, child in zip(dataclasses.fields(TurnMDP), children, strict=True):
        object.__setattr__(mdp, field.name, child)
    return mdp


jax.tree_util.register_pytree_with_keys(TurnMDP, _flatten, _unflatten)
