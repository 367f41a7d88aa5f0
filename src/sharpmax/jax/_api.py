"""Check the arguments of attention, choose an implementation and call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sharpmax._statistics import RowStatistics
from sharpmax.jax import _problem as problems
from sharpmax.jax import _temperature as temperature
from sharpmax.jax._problem import Array, Problem
from sharpmax.jax.impl import cpu, pallas_gpu, pallas_tpu, reference, xla
from sharpmax.policies import Identity, Policy

Implementation = Literal["cpu", "xla", "pallas_tpu", "pallas_gpu", "reference"]

IMPLEMENTATIONS: dict[str, Any] = {
    "cpu": cpu,
    "xla": xla,
    "pallas_tpu": pallas_tpu,
    "pallas_gpu": pallas_gpu,
    "reference": reference,
}
"""By name, in the order in which None tries them. `sharpmax.jax.impl` says what each provides.

Those of Pallas come behind "xla", which serves everything, until they have run on hardware.
"""

_PLAIN = Identity()


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    policy: Policy | None = None,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    sink: Array | None = None,
    implementation: Implementation | Sequence[Implementation] | None = None,
    axis_name: str | None = None,
    return_residual: bool = False,
    return_statistics: bool = False,
) -> Any:
    """Attend with the inverse temperature that a policy gives each row: softmax(beta e) V.

    Layout, names and meaning are those of `jax.nn.dot_product_attention`. The logits of a row are
    e = scale q.k, then logits_soft_cap tanh(e / logits_soft_cap), then + bias; beta multiplies all
    of that. Only visible keys count in the entropy and in n. A row that sees no key gives zeros.

    Args:
        query: [batch, queries, heads, width], or without the batch.
        key: [batch, keys, key heads, width]; key heads divide heads (grouped-query attention).
        value: [batch, keys, key heads, value width].
        bias: added to the logits; broadcasts to [batch, heads, queries, keys]. Entries of -inf, or
            at or below half of finfo.min, hide the key.
        mask: booleans that broadcast likewise; True is visible.
        policy: gives the inverse temperature of each row; None is plain softmax. A parameter with
            one axis has one entry per query head. It may hold traced arrays.
        scale: the factor of the product; 1/sqrt(width) if None.
        is_causal: a query sees no key after its own position. Query 0 is at key 0.
        query_seq_lengths: [batch]; queries from here on see nothing.
        key_value_seq_lengths: [batch]; keys from here on are not visible.
        local_window_size: how many keys before and after its position a query sees; one integer
            stands for both.
        logits_soft_cap: soft bound of the logits, as in Gemma 2.
        sink: [heads], one more key of each row whose value is zero, as in gpt-oss.
        implementation: a name, or several of which the first that can serve is used; None takes the
            fastest that can.
        axis_name: inside `jax.shard_map`, the mesh axis over which keys and values are sharded, and
            mask and bias along their keys. The result is that of all keys.
        return_residual: also return log sum exp(beta e), [batch, queries, heads], without gradient.
        return_statistics: also return the statistics of the untempered rows.

    Returns:
        [batch, queries, heads, value width]; then the residual and `RowStatistics` [batch, queries,
        heads] (float32 at least, without gradient), if asked for.

    Raises:
        TypeError, ValueError: naming the argument, what was expected and what came.
        NotImplementedError: no implementation that was asked for can serve; the message says why.

    Example:
        >>> import jax, sharpmax.jax
        >>> from sharpmax.policies import Exponential
        >>> query = key = value = jax.random.normal(jax.random.key(0), (1, 8, 2, 16))
        >>> sharpmax.jax.attention(query, key, value, is_causal=True, policy=Exponential(1.0)).shape
        (1, 8, 2, 16)
    """
    if policy is None:
        policy = _PLAIN
    elif not isinstance(policy, Policy):
        raise TypeError(f"policy: expected a sharpmax policy or None, got {policy!r}")
    problem = problems.check(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        logits_soft_cap=logits_soft_cap,
        sink=sink,
        axis_name=axis_name,
    )
    chosen = choose(implementation, problem, policy)
    problem = problems.spread(problem)
    result = temperature.attend(chosen, problem, policy, measured=return_statistics)
    batched = jnp.ndim(query) == 4
    returned: list[Any] = [result.output if batched else result.output[0]]
    if return_residual:
        residual = jax.lax.stop_gradient(result.log_mass).astype(problem.query.dtype)
        returned.append(_by_position(residual, batched))
    if return_statistics:
        assert result.statistics is not None
        returned.append(RowStatistics(*(_by_position(x, batched) for x in result.statistics)))
    return returned[0] if len(returned) == 1 else tuple(returned)


def attention_statistics(
    query: Array,
    key: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    sink: Array | None = None,
    implementation: Implementation | Sequence[Implementation] | None = None,
    axis_name: str | None = None,
) -> RowStatistics:
    """Measure every row of an attention: its statistics, and with them its entropy.

    The arguments are those of `sharpmax.jax.attention`, without values and without a policy.

    Returns:
        `RowStatistics` of the untempered rows, [batch, queries, heads], float32 at least, without
        gradient.

    Raises:
        TypeError, ValueError, NotImplementedError: as `sharpmax.jax.attention` does.

    Example:
        >>> import jax.numpy as jnp, sharpmax.jax
        >>> query = key = jnp.zeros((1, 100, 2, 16))
        >>> round(float(sharpmax.jax.attention_statistics(query, key).entropy()[0, 0, 0]), 4)
        4.6052
    """
    problem = problems.check(
        query,
        key,
        None,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        logits_soft_cap=logits_soft_cap,
        sink=sink,
        axis_name=axis_name,
    )
    chosen = choose(implementation, problem, None)
    statistics = temperature.measure(chosen, problems.spread(problem))
    batched = jnp.ndim(query) == 4
    return RowStatistics(*(_by_position(entry, batched) for entry in statistics))


def choose(
    implementation: str | Sequence[str] | None, problem: Problem, policy: Policy | None
) -> Any:
    """Choose the implementation for a checked problem and make it ready.

    None passes over one that cannot be made ready, such as kernels that fail to compile.
    """
    if implementation is None:
        names = list(IMPLEMENTATIONS)
    else:
        names = [implementation] if isinstance(implementation, str) else list(implementation)
        if not names or not IMPLEMENTATIONS.keys() >= set(names):
            expected = ", ".join(IMPLEMENTATIONS)
            raise ValueError(f"implementation: expected one of {expected}, got {implementation!r}")
    reasons = []
    for name in names:
        candidate = IMPLEMENTATIONS[name]
        reason = candidate.unsupported(problem, policy)
        if reason is None and hasattr(candidate, "prepare"):
            reason = candidate.prepare()
        if reason is None:
            return candidate
        reasons.append(f"{name}: {reason}")
    raise NotImplementedError(f"implementation={implementation!r}: {'; '.join(reasons)}")


def _by_position(rows: Array, batched: bool) -> Array:
    """Rows as [batch, queries, heads], or without the batch."""
    rows = rows.transpose(0, 2, 1)
    return rows if batched else rows[0]
