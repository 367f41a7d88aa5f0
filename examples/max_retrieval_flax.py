"""Train the paper's max-retrieval head with Flax and Optax, watch it disperse, and mend it.

    pip install 'sharpmax[jax]' flax optax
    python examples/max_retrieval_flax.py

A set has items, each with a priority and one of ten classes; the answer is the class of the item
with the highest priority. The head trains on 5 to 16 items. Its accuracy on more items falls,
because softmax disperses. `Exponential`, calibrated without labels on sets of 16 items, sharpens
the rows that have become flatter, with the same weights.
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from sharpmax.jax import attention, attention_statistics
from sharpmax.policies import Exponential

CLASSES, WIDTH, BATCH = 10, 128, 128


class Head(nn.Module):
    """One attention head between MLPs.

    The layers of the items behind GELU are linear, and so applied to the query and the mixture.
    """

    @nn.compact
    def __call__(self, items, query, count, policy=None, measure=False):
        hidden = nn.gelu(nn.Dense(WIDTH)(items))[:, :, None]  # keys and values, one head
        query = nn.Dense(WIDTH)(nn.gelu(nn.Dense(WIDTH)(query)))
        for _ in "QKW":
            query = nn.Dense(WIDTH, use_bias=False)(query)
        options = {"key_value_seq_lengths": jnp.full(len(items), count)}
        query = query[:, None, None]
        if measure:
            return attention_statistics(query, hidden, **options).entropy().mean()
        mixture = attention(query, hidden, hidden, policy=policy, **options)[:, 0, 0]
        for _ in "WV":
            mixture = nn.Dense(WIDTH, use_bias=False)(mixture)
        return nn.Dense(CLASSES)(nn.gelu(nn.Dense(WIDTH)(mixture)))


def sample(key, sets, size, count):
    """Items, queries and answers of sets; only the first `count` items of a set are in it."""
    of_priority, of_class, of_query = jax.random.split(key, 3)
    priority = jax.random.uniform(of_priority, (sets, size))
    kind = jax.random.randint(of_class, (sets, size), 0, CLASSES)
    items = jnp.concatenate([priority[..., None], jax.nn.one_hot(kind, CLASSES)], -1)
    largest = jnp.where(jnp.arange(size) < count, priority, -1).argmax(-1)
    answer = jnp.take_along_axis(kind, largest[:, None], 1)[:, 0]
    return items, jax.random.uniform(of_query, (sets, 1)), answer


def train(steps, seed=0):
    """Return the moving average of the weights, as the table of the experiment does."""
    head, optimiser = Head(), optax.adamw(1e-3, weight_decay=1e-3)
    key = jax.random.key(seed)
    weights = head.init(key, *sample(key, 2, 16, 16)[:2], 16)

    def step(state, key):
        weights, averaged, moments = state
        count = jax.random.randint(key, (), 5, 17)
        items, query, answer = sample(jax.random.fold_in(key, 1), BATCH, 16, count)

        def loss(weights):
            scores = head.apply(weights, items, query, count)
            return optax.softmax_cross_entropy_with_integer_labels(scores, answer).mean()

        updates, moments = optimiser.update(jax.grad(loss)(weights), moments, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, optax.incremental_update(weights, averaged, 1e-3), moments), None

    state = (weights, weights, optimiser.init(weights))
    return jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[0][1])(
        state, jax.random.split(key, steps)
    )


def accuracy(weights, policy, size, sets, chunk=1 << 16):
    """Return the share of sets of `size` items that the head answers correctly."""
    each = max(1, min(sets, chunk // size))

    @jax.jit
    def right(key):
        items, query, answer = sample(key, each, size, size)
        return (Head().apply(weights, items, query, size, policy).argmax(-1) == answer).mean()

    keys = jax.random.split(jax.random.key(size), sets // each)
    return sum(float(right(key)) for key in keys) / len(keys)


def write(*cells):
    """Write one row of the table."""
    sys.stdout.write(" ".join(cells) + "\n")
    sys.stdout.flush()


def main(arguments=None):
    """Train, calibrate and print one row per method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096, 16384])
    parser.add_argument("--sets", type=int, default=2048, help="sets per size; fewer if large")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    weights = train(given.steps, given.seed)
    items, query, _ = sample(jax.random.key(1), 4096, 16, 16)
    reference = float(Head().apply(weights, items, query, 16, measure=True))
    write("accuracy, %".ljust(32), *(f"{size:>8,}" for size in given.sizes))
    for policy in (None, Exponential(reference)):
        sets = [max(256, min(given.sets, (1 << 23) // size)) for size in given.sizes]
        found = [accuracy(weights, policy, *each) for each in zip(given.sizes, sets, strict=True)]
        name = "softmax" if policy is None else f"Exponential({reference:.3f})"
        write(name.ljust(32), *(f"{100 * share:8.2f}" for share in found))


if __name__ == "__main__":
    main()
