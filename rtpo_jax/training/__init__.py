"""Learning: train state, the one jitted update, the stage loop, warm start, checkpoints, metrics."""

from rtpo_jax.training.checkpoints import Checkpoints
from rtpo_jax.training.loop import evaluate, evaluation_record, iterate, policy_of
from rtpo_jax.training.metrics import CompileCounter, MetricsFile
from rtpo_jax.training.update import TrainState, Updater, adamw, create_state, minibatches
from rtpo_jax.training.warm_start import WarmStart, demonstration_rows, imitate

__all__ = [
    "Checkpoints",
    "CompileCounter",
    "MetricsFile",
    "TrainState",
    "Updater",
    "WarmStart",
    "adamw",
    "create_state",
    "demonstration_rows",
    "evaluate",
    "evaluation_record",
    "imitate",
    "iterate",
    "minibatches",
    "policy_of",
]
