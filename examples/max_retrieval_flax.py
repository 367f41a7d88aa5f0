"""Train the paper's max-retrieval head with Flax and Optax, watch it disperse, and mend it.

    pip install 'sharpmax[jax]' flax optax
    python examples/max_retrieval_flax.py

An item has a priority and one of ten classes. The answer is the class of the item with the highest
priority. The head trains on 5 to 16 items and then sees up to 16,384. `Exponential` is calibrated
without labels, on sets of 16 items.
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from sharpmax.jax import attention
from sharpmax.policies import Exponential

gelu = partial(nn.gelu, approximate=False)
normal = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
Layer = partial(nn.Dense, kernel_init=normal)
Linear = partial(Layer, 128, use_bias=False)


class Head(nn.Module):
    """One head between MLPs. Linear layers of the items are applied to the query and the mixture.

    Returns the scores of the classes, and the mean entropy of the rows.
    """

    @nn.compact
    def __call__(self, priority, kind, query, count, policy=None):
        # A layer each for the priority and the class, so that both begin with the same weight.
        items = Layer(128)(priority[..., None]) + Linear()(jax.nn.one_hot(kind, 10))
        items, outer = gelu(items)[:, :, None], self.param("outer", normal, (128, 128))
        query = Linear()(Linear()(Layer(128)(gelu(Layer(128)(query))))) @ outer.T
        options = {"policy": policy, "key_value_seq_lengths": jnp.full(len(kind), count)}
        mixture, rows = attention(
            query[:, None, None], items, items, return_statistics=True, **options
        )
        hidden = gelu(Layer(128)(Linear()(mixture[:, 0, 0] @ outer)))
        return Layer(10)(hidden), rows.entropy().mean()


def sample(key, sets, size, count):
    """Return what the head sees of sets, whose first `count` items are there, and the answers."""
    keys = jax.random.split(key, 3)
    priority = jax.random.uniform(keys[0], (sets, size))
    kind = jax.random.randint(keys[1], (sets, size), 0, 10)
    answer = kind[jnp.arange(sets), jnp.where(jnp.arange(size) < count, priority, -1).argmax(-1)]
    return (priority, kind, jax.random.uniform(keys[2], (sets, 1)), count), answer


def train(steps, seed):
    """Return the moving average of the weights."""
    optimiser, key = optax.adamw(1e-3, weight_decay=1e-3), jax.random.key(seed)
    weights = Head().init(key, *sample(key, 2, 16, 16)[0])

    def step(state, key):
        weights, averaged, moments = state
        of_count, of_sets = jax.random.split(key)
        given, answer = sample(of_sets, 128, 16, jax.random.randint(of_count, (), 5, 17))

        def loss(weights):
            scores, _ = Head().apply(weights, *given)
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
        given, answer = sample(key, each, size, size)
        return (Head().apply(weights, *given, policy)[0].argmax(-1) == answer).mean()

    keys = jax.random.split(jax.random.key(size), -(-sets // each))
    return 100 * float(jax.lax.map(right, keys).mean())


def main(steps=40_000, sizes=(16, 64, 256, 1024, 4096, 16384), sets=4096, seed=0):
    """Train, calibrate and print one row per method."""
    weights = train(steps, seed)
    entropy = float(Head().apply(weights, *sample(jax.random.key(1), 4096, 16, 16)[0])[1])
    for policy in (None, Exponential(entropy)):
        row = [f"{n}: {accuracy(weights, policy, n, min(sets, 2**24 // n)):.2f}%" for n in sizes]
        sys.stdout.write(f"{policy or 'softmax'}\n  {', '.join(row)}\n")


if __name__ == "__main__":
    main()
