"""What the kernels share: rows, ranges of keys, tiles, logits and weights."""

import triton
import triton.language as tl


@triton.jit
def row_range(heads, group, queries, BLOCK_M: tl.constexpr, LAST_FIRST: tl.constexpr):
    """The rows of a program.

    Returns batch, key head, query and head in the group of each row, its place in arrays over rows,
    whether it exists, and the first and the last query.
    """
    blocks = tl.cdiv(queries * group, BLOCK_M)
    block = tl.program_id(0) % blocks
    if LAST_FIRST:  # with a window the last rows have most keys: the longest programs start first
        block = blocks - 1 - block
    place = tl.program_id(0) // blocks
    batch = tl.cast(place // heads, tl.int64)
    head = tl.cast(place % heads, tl.int64)
    r = block * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = r < queries * group
    i = r // group
    g = r % group
    row = ((batch * heads + head) * group + g) * queries + i
    first = block * BLOCK_M // group
    last = tl.minimum(block * BLOCK_M + BLOCK_M, queries * group) - 1
    return batch, head, i, g, row, exists, first, last // group


@triton.jit
def key_range(
    first, last, keys, left, right, offset, split, splits,
    WINDOWED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The keys from start to stop that this split of queries `first` to `last` may see."""
    start = 0
    stop = keys
    if WINDOWED:
        start = tl.maximum(first + offset - left, 0) // BLOCK_N * BLOCK_N
        stop = tl.minimum(last + offset + right + 1, keys)
    share = tl.cdiv(tl.cdiv(tl.maximum(stop - start, 0), BLOCK_N), splits) * BLOCK_N
    start += split * share
    return start, tl.minimum(start + share, stop)


@triton.jit
def load(rows, exists, step, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of WIDTH numbers, padded with zeros to BLOCK; `rows` points to the first of each."""
    d = tl.arange(0, BLOCK)
    return tl.load(
        rows[:, None] + d[None, :] * step,
        mask=exists[:, None] & (d < WIDTH)[None, :],
        other=0.0,
    )


@triton.jit
def logits(
    q, k, mask_rows, m_j, i, j, exists, here,
    scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """The logits of rows and keys, -inf where a key is hidden; and tanh of the soft cap.

    MASKED is "boolean", "additive" or "".
    """
    e = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    bent = e
    if CAPPED:
        bent = _tanh(e / softcap)
        e = softcap * bent
    visible = exists[:, None] & here[None, :]
    if WINDOWED:
        distance = j[None, :] - (i + offset)[:, None]
        visible = visible & (distance >= -left) & (distance <= right)
    if MASKED == "boolean":
        entry = tl.load(mask_rows[:, None] + j[None, :] * m_j, mask=visible, other=0)
        visible = visible & (entry != 0)
    if MASKED == "additive":
        entry = tl.load(mask_rows[:, None] + j[None, :] * m_j, mask=visible, other=0.0)
        bias = entry.to(tl.float32)
        visible = visible & (bias > hidden) | (visible & (bias != bias))
        e += bias
    return tl.where(visible, e, float("-inf")), bent


@triton.jit
def gap(e, maximum):
    """E - maximum, without infinities; 0 where they are equal, also if both are infinite."""
    difference = e - maximum
    return tl.where(e == maximum, 0.0, tl.where(difference < -1e18, -1e18, difference))


@triton.jit
def weight(e, d, beta):
    """exp(beta d), where d = e - maximum; at an infinite beta only the maxima have weight."""
    return tl.where(e == float("-inf"), 0.0, tl.where(d == 0.0, 1.0, tl.exp(beta * d)))


@triton.jit
def _tanh(x):
    """To a few roundings, also near 0, where the quotient cancels."""
    decay = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - decay) / (1.0 + decay)
    square = x * x
    small = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.15, small, tl.where(x < 0.0, -large, large))
