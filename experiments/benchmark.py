"""How fast the inner loops run: decode and update as shares of the machine's peak, MDPs per second.

    python -m experiments.benchmark

Measures, after warm-up, with `block_until_ready`, medians over repetitions:

* the peak: float32 products of two 1024 x 1024 matrices;
* the decode loop (prefill apart) of the sampler, at 256 rows, 16 context and 6 new tokens;
* the update (forward, backward, AdamW) on 256 rows of 24 tokens with 6 chosen ones each;
* the same two with the SmolLM2 shape and random weights when `--large` is given (16 rows of
  64 context and 16 new tokens).

and, of the tabular side, in float64:

* exact values of a policy, and a whole exact proximal update (values, occupancy, the maximiser of the
  clipped surrogate in every state, new performance), of `--mdps` stacked random MDPs with 3 turns, 3
  states and 2 actions, against the same computation in a plain numpy loop over a share of them.

Useful operations are counted from the shapes: 2 per matrix parameter and token forward (6 with the
backward pass), attention included, the output head only where logits are computed. Machines differ and
are shared: read the shares and ratios, and compare times only within one run. Expected time: under a
minute, three with `--large`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.timing import median_seconds
from rtpo_jax.algorithms import GRPO, Batch, Rows
from rtpo_jax.models import TransformerConfig, init
from rtpo_jax.rollouts import LanguageModelLogProbs, Sampler
from rtpo_jax.training import Updater, adamw, create_state

PEAK_SIZE = 1024
SMOLLM2 = TransformerConfig(
    vocab_size=49152,
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    rope_theta=1e5,
    rms_norm_eps=1e-5,
    qk_norm=False,
    tie_embeddings=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """What is measured."""

    repetitions: int = 7  # timed calls of each measurement, after one warm-up call
    rows: int = 256  # batch of the small model
    context: int = 16  # context tokens of a row
    new_tokens: int = 6  # decoded or trained tokens of a row
    mdps: int = 4096  # stacked random MDPs of the tabular side
    large: bool = False  # also measure the SmolLM2 shape

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name != "large" and getattr(self, field.name) < 1:
                raise ValueError(f"{field.name}={getattr(self, field.name)}: use 1 or more")


def peak_flops(repetitions: int) -> float:
    """Operations per second of a large float32 matrix product."""
    left = jax.random.normal(jax.random.key(0), (PEAK_SIZE, PEAK_SIZE))
    product = jax.jit(jnp.matmul)
    return 2 * PEAK_SIZE**3 / median_seconds(lambda: product(left, left), repetitions)


def decode_speed(
    model: TransformerConfig, rows: int, context: int, new_tokens: int, repetitions: int
) -> dict[str, float]:
    """Decoded tokens per second, and the operations per second behind them."""
    params = init(model, jax.random.key(0))
    rng = np.random.default_rng(0)
    contexts = [tuple(row) for row in rng.integers(2, model.vocab_size, (rows, context)).tolist()]
    # An end id outside the vocabulary is never sampled, so every row decodes `new_tokens`.
    long, short = (
        Sampler(model, model.vocab_size, 0, count, (context,), most_rows=rows)
        for count in (new_tokens + 1, 1)
    )
    key = jax.random.key(1)
    times = [
        median_seconds(lambda s=sampler: s.sample(params, contexts, key).log_probs, repetitions)
        for sampler in (long, short)
    ]
    seconds = times[0] - times[1]  # new_tokens decode steps; prefill and host work cancel
    tokens = rows * new_tokens
    flops = tokens * model.flops_per_token(context + new_tokens // 2)
    return {"seconds": seconds, "tokens_per_second": tokens / seconds, "flops": flops / seconds}


def random_batch(model: TransformerConfig, rows: int, context: int, new_tokens: int) -> Batch:
    """A batch of full rows with random tokens and advantages."""
    rng = np.random.default_rng(0)
    shape = (rows, new_tokens)
    ones = np.ones(rows, np.int32)
    batch_rows = Rows(
        tokens=rng.integers(0, model.vocab_size, (rows, context + new_tokens), np.int32),
        action_positions=np.tile(
            np.arange(context, context + new_tokens, dtype=np.int32), (rows, 1)
        ),
        action_mask=np.ones(shape, bool),
        turn_ids=np.zeros(shape, np.int32),
        behavior_log_probs=np.full(shape, -np.log(model.vocab_size), np.float32),
        policy_versions=np.zeros(shape, np.int32),
        rewards=np.zeros((rows, 1), np.float32),
        discounts=np.zeros((rows, 1), np.float32),
        group_ids=ones,
        sibling_ids=-ones,
        trajectory_ids=np.arange(rows, dtype=np.int32),
    )
    advantages = rng.normal(size=shape).astype(np.float32)
    return Batch(batch_rows, advantages, np.full(shape, 1 / advantages.size, np.float32))


def update_speed(
    model: TransformerConfig, rows: int, context: int, new_tokens: int, repetitions: int
) -> dict[str, float]:
    """Rows' tokens per second through one optimiser step, and the operations behind them."""
    large = model.vocab_size > 4096
    log_prob_fn = LanguageModelLogProbs(model, 1.0, chunk=128 if large else None, remat=not large)
    updater = Updater(log_prob_fn, adamw(1e-4), micro_batch=min(rows, 64))
    state = create_state(init(model, jax.random.key(0)), updater.optimizer)
    batch, goal = random_batch(model, rows, context, new_tokens), GRPO()
    holder = [state]

    def step():
        holder[0], metrics = updater(goal, holder[0], batch)
        return holder[0].params, metrics

    seconds = median_seconds(step, repetitions)
    tokens = rows * (context + new_tokens)
    head = 2 * model.vocab_size * model.hidden_size
    body = tokens * (model.flops_per_token((context + new_tokens) // 2) - head)
    flops = 3 * (body + rows * new_tokens * head)
    return {"seconds": seconds, "tokens_per_second": tokens / seconds, "flops": flops / seconds}


def run(config: BenchmarkConfig) -> list[dict]:
    """All measurements, one row each."""
    peak = peak_flops(config.repetitions)
    small = TransformerConfig.tiny(33)
    shapes = [("0.1 M parameters", small, config.rows, config.context, config.new_tokens)]
    if config.large:
        shapes.append(("SmolLM2 shape", SMOLLM2, 16, 64, 16))
    rows = [{"what": "matrix product", "model": "", "seconds": 2 * PEAK_SIZE**3 / peak,
             "tokens_per_second": 0.0, "gflops": peak / 1e9, "share_of_peak": 1.0}]  # fmt: skip
    for name, model, *sizes in shapes:
        for what, measure in (("decode", decode_speed), ("update", update_speed)):
            found = measure(model, *sizes, config.repetitions)
            flops = found.pop("flops")
            share = flops / peak
            rows.append({"what": what, "model": name, **found,
                         "gflops": flops / 1e9, "share_of_peak": share})  # fmt: skip
    return rows


def show(rows: list[dict], title: str) -> None:
    """Print rows as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def main() -> None:
    """Measure and print."""
    config = tyro.cli(BenchmarkConfig, description=__doc__)
    device = f"{jax.devices()[0].device_kind}, {jax.device_count()} device(s)"
    show(run(config), device)
    # Imported last: it turns on float64 for the process, which must not reach the loops above.
    from experiments import tabular_speed

    show(tabular_speed.run(config.mdps, config.repetitions), f"tabular, {device}")


if __name__ == "__main__":
    main()
