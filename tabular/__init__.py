"""Turn-boundary MDPs as arrays, and exact dynamic programming on them.

An episode has H turns. At turn h it stands in a boundary state s, the policy chooses a whole action
a, the environment pays r_h(s, a) and moves to the next boundary state or ends. With finitely many
states and actions every expectation is a finite sum, so claims about algorithms can be checked
instead of estimated.

Importing this package turns on float64 for the whole JAX process
(``jax.config.update("jax_enable_x64", True)``): identities that hold exactly on paper hold here to
about 1e-15, and in float32 they would drown in rounding. Arrays in other dtypes are refused.

>>> import tabular
>>> mdp = tabular.lock(num_turns=4)
>>> policy = tabular.lock_policy(mdp, success_probability=0.6)
>>> round(float(tabular.performance(mdp, policy)), 4)
0.1296
"""

import jax

from tabular.exact import (
    Values,
    advantages,
    occupancy,
    optimal_policy,
    optimal_values,
    performance,
    policy_gradient,
    values,
)
from tabular.instances import (
    Instance,
    lock,
    lock_policy,
    random_mdp,
    random_policy,
    toy_hidden_action,
    toy_reverse_order,
    uniform_policy,
)
from tabular.mdp import TurnMDP, check_policy
from tabular.moments import (
    Decomposition,
    Moments,
    return_moments,
    variance_decomposition,
)
from tabular.objectives import (
    Credit,
    credit,
    expected_surrogate,
    maximise_surrogate,
    mean_credit,
    merge_contexts,
)
from tabular.paths import Paths, all_paths, along, at_states, path_probabilities, path_rewards
from tabular.policy_classes import (
    PolicyClass,
    aliased,
    linear,
    per_turn_table,
    shared_logits,
    token_tree,
)
from tabular.trajectories import Trajectories, trajectories
from tabular.updates import (
    ascend,
    group_advantages,
    reverse_order,
    sequential,
    siblings,
    simultaneous,
    value_advantages,
)

# Nothing above makes an array while it is imported, so the order of these lines is harmless.
jax.config.update("jax_enable_x64", True)

__all__ = [
    "Credit",
    "Decomposition",
    "Instance",
    "Moments",
    "Paths",
    "PolicyClass",
    "Trajectories",
    "TurnMDP",
    "Values",
    "advantages",
    "aliased",
    "all_paths",
    "along",
    "ascend",
    "at_states",
    "check_policy",
    "credit",
    "expected_surrogate",
    "group_advantages",
    "linear",
    "lock",
    "lock_policy",
    "maximise_surrogate",
    "mean_credit",
    "merge_contexts",
    "occupancy",
    "optimal_policy",
    "optimal_values",
    "path_probabilities",
    "path_rewards",
    "per_turn_table",
    "performance",
    "policy_gradient",
    "random_mdp",
    "random_policy",
    "return_moments",
    "reverse_order",
    "sequential",
    "shared_logits",
    "siblings",
    "simultaneous",
    "token_tree",
    "toy_hidden_action",
    "toy_reverse_order",
    "trajectories",
    "uniform_policy",
    "value_advantages",
    "values",
    "variance_decomposition",
]
