"""Train the paper's max-retrieval head with Flax and Optax, watch it disperse, and mend it.

    pip install 'sharpmax[jax]' flax optax
    python examples/max_retrieval_flax.py

An item has a priority and one of ten classes. The answer is the class of the item with the highest
priority. The head trains on 5 to 16 items and then sees up to 16,384. `Exponential` is calibrated
without labels, on sets of 16 items.
"""

import sys

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from sharpmax.jax import attention, attention_statistics
from sharpmax.policies import Exponential


class Head(nn.Module):
    """One head between MLPs. The items' linear layers are applied to the query and the mixture."""

    @nn.compact
    def __call__(self, priority, kind, query, count, policy=None, measure=False):
        # A layer each for the priority and the class, so that both begin with the same weight.
        items = nn.Dense(128)(priority[..., None]) + nn.Dense(128, use_bias=False)(kind)
        hidden = nn.gelu(items)[:, :, None]  # keys and values
        query = nn.Dense(128)(nn.gelu(nn.Dense(128)(query)))
        for _ in "QKW":
            query = nn.Dense(128, use_bias=False)(query)
        query, seen = query[:, None, None], {"key_value_seq_lengths": jnp.full(len(kind), count)}
        if measure:
            return attention_statistics(query, hidden, **seen).entropy().mean()
        mixture = attention(query, hidden, hidden, policy=policy, **seen)[:, 0, 0]
        for _ in "WV":
            mixture = nn.Dense(128, use_bias=False)(mixture)
        return nn.Dense(10)(nn.gelu(nn.Dense(128)(mixture)))


def sample(key, sets, size, count):
    """Priorities, classes, queries and answers of sets; the first `count` items are there."""
    keys = jax.random.split(key, 3)
    priority, query = (
        jax.random.uniform(keys[0], (sets, size)),
        jax.random.uniform(keys[1], (sets, 1)),
    )
    kind = jax.random.randint(keys[2], (sets, size), 0, 10)
    answer = kind[jnp.arange(sets), jnp.where(jnp.arange(size) < count, priority, -1).argmax(-1)]
    return priority, jax.nn.one_hot(kind, 10), query, answer


def train(steps, seed):
    """Return the moving average of the weights."""
    optimiser, key = optax.adamw(1e-3, weight_decay=1e-3), jax.random.key(seed)
    weights = Head().init(key, *sample(key, 2, 16, 16)[:3], 16)

    def step(state, key):
        weights, averaged, moments = state
        count = jax.random.randint(key, (), 5, 17)
        *sets, answer = sample(jax.random.fold_in(key, 1), 128, 16, count)

        def loss(weights):
            scores = Head().apply(weights, *sets, count)
            return optax.softmax_cross_entropy_with_integer_labels(scores, answer).mean()

        updates, moments = optimiser.update(jax.grad(loss)(weights), moments, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, optax.incremental_update(weights, averaged, 1e-3), moments), None

    state, keys = (weights, weights, optimiser.init(weights)), jax.random.split(key, steps)
    return jax.jit(lambda: jax.lax.scan(step, state, keys)[0][1])()


def accuracy(weights, policy, size, sets):
    """Return the share of sets that the head answers correctly, in percent."""
    each = max(1, min(sets, 65536 // size))

    def right(key):
        *given, answer = sample(key, each, size, size)
        return (Head().apply(weights, *given, size, policy).argmax(-1) == answer).mean()

    keys = jax.random.split(jax.random.key(size), -(-sets // each))
    return 100 * float(jax.lax.map(right, keys).mean())


def main(steps=40_000, sizes=(16, 64, 256, 1024, 4096, 16384), sets=1024, seed=0):
    """Train, calibrate and print one row per method."""
    weights = train(steps, seed)
    given = *sample(jax.random.key(1), 4096, 16, 16)[:3], 16
    entropy = float(Head().apply(weights, *given, measure=True))
    for policy in (None, Exponential(entropy)):
        row = [f"{n}: {accuracy(weights, policy, n, sets):.2f}%" for n in sizes]
        sys.stdout.write(f"{policy or 'softmax'}\n  {', '.join(row)}\n")


if __name__ == "__main__":
    main()
