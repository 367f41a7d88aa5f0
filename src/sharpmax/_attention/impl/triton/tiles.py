"""What the kernels share: rows, ranges of keys, tiles, logits, logits that are kept, weights."""

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
def rows_at(tensor, batch, head, place, step_b, step_h, step):
    """Pointers to the rows of a tensor [batch, heads, length, width] at these places."""
    return tensor + batch * step_b + head * step_h + place.to(tl.int64) * step


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
def load_block(
    first, base, stop, step, step_d,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The keys or values from `base` on, BLOCK_N of them; `first` points to key 0 of a head."""
    rows = first + tl.cast(base, tl.int64) * step + tl.arange(0, BLOCK_N) * step
    return load(rows, base + tl.arange(0, BLOCK_N) < stop, step_d, WIDTH, BLOCK)


@triton.jit
def logits(
    q, k, mask_rows, m_j, i, j, exists, here,
    scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """The logits of rows and keys, -inf where a key is hidden; and tanh of the soft cap.

    MASKED is "boolean", "additive" or "".
    """
    e, bent = capped(q, k, scale, softcap, CAPPED)
    e = hide(e, mask_rows, m_j, i, j, exists, here, hidden, left, right, offset, MASKED, WINDOWED)
    return e, bent


@triton.jit
def capped(q, k, scale, softcap, CAPPED: tl.constexpr):
    """Logits before masks, and tanh of the soft cap."""
    e = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    bent = e
    if CAPPED:
        bent = _tanh(e / softcap)
        e = softcap * bent
    return e, bent


@triton.jit
def hide(
    e, mask_rows, m_j, i, j, exists, here, hidden, left, right, offset,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Add an additive mask, and put -inf where a key is hidden."""
    visible, bias = visibility(
        mask_rows, m_j, i, j, exists, here, hidden, left, right, offset, MASKED, WINDOWED
    )
    if MASKED == "additive":
        e += bias
    return tl.where(visible, e, float("-inf"))


@triton.jit
def seen_whole(
    base, stop, first, last, left, right, offset, WINDOWED: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Whether queries `first` to `last` see all keys of a block, as far as positions go.

    Then no entry needs to be looked at. Most blocks are like that.
    """
    whole = base + BLOCK_N <= stop
    if WINDOWED:
        whole = whole & (base >= last + offset - left)
        whole = whole & (base + BLOCK_N <= first + offset + right + 1)
    return whole


@triton.jit
def visibility(
    mask_rows, m_j, i, j, exists, here, hidden, left, right, offset,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Which keys the rows see, by position and mask; and what an additive mask adds."""
    visible = exists[:, None] & here[None, :]
    bias = 0.0
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
    return visible, bias


@triton.jit
def keep(rows, keys, base, e, exists, here, PACKED: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write a block of logits for `kept` to read; `rows` points to the bytes of each row.

    A row is the logits, then the largest of each block. PACKED keeps 24 bits of the distance from
    the largest of the block. A weight exp(beta d) then has a relative error of at most
    beta |d| / 2^17, whatever beta is: below 3e-4 while the weight is above 1e-15, and the weight is
    rounded to half precision, 2e-3, before it multiplies a value.
    """
    peak = tl.max(e, 1)
    tl.store(_peaks(rows, keys, PACKED) + base // BLOCK_N, peak, mask=exists)
    j = base + tl.arange(0, BLOCK_N)
    there = exists[:, None] & here[None, :]
    if PACKED:
        d = tl.where(e == float("-inf"), e, gap(e, peak[:, None]))
        bits = d.to(tl.int32, bitcast=True)
        bits = tl.where(d == d, bits + 0x80, bits)  # to the nearest; NaN stays NaN
        high = rows.to(tl.pointer_type(tl.int16), bitcast=True)
        tl.store(high[:, None] + j[None, :], (bits >> 16).to(tl.int16), mask=there)
        low = rows + 2 * _aligned(keys)
        tl.store(low[:, None] + j[None, :], (bits >> 8 & 0xFF).to(tl.uint8), mask=there)
    else:
        whole = rows.to(tl.pointer_type(tl.float32), bitcast=True)
        tl.store(whole[:, None] + j[None, :], e, mask=there)


@triton.jit
def kept_peak(rows, keys, base, exists, PACKED: tl.constexpr, BLOCK_N: tl.constexpr):
    """The largest logit of each row in the block at `base`."""
    place = _peaks(rows, keys, PACKED) + base // BLOCK_N
    return tl.load(place, mask=exists, other=float("-inf"))


@triton.jit
def kept(rows, keys, base, exists, here, PACKED: tl.constexpr, BLOCK_N: tl.constexpr):
    """A block of logits that `keep` wrote."""
    j = base + tl.arange(0, BLOCK_N)
    there = exists[:, None] & here[None, :]
    if PACKED:
        peak = kept_peak(rows, keys, base, exists, PACKED, BLOCK_N)[:, None]
        high = rows.to(tl.pointer_type(tl.int16), bitcast=True)
        low = rows + 2 * _aligned(keys)
        upper = tl.load(high[:, None] + j[None, :], mask=there, other=-128)  # that of -inf
        lower = tl.load(low[:, None] + j[None, :], mask=there, other=0)
        bits = upper.to(tl.int32) << 16 | lower.to(tl.int32) << 8
        d = bits.to(tl.float32, bitcast=True)
        # Beside an infinite logit the others have no weight, wherever they are.
        return tl.where(d == 0.0, peak, tl.where(peak == float("inf"), d, peak + d))
    whole = rows.to(tl.pointer_type(tl.float32), bitcast=True)
    return tl.load(whole[:, None] + j[None, :], mask=there, other=float("-inf"))


@triton.jit
def _peaks(rows, keys, PACKED: tl.constexpr):
    size = 3 if PACKED else 4
    return (rows + size * _aligned(keys)).to(tl.pointer_type(tl.float32), bitcast=True)


@triton.jit
def _aligned(keys):
    return tl.cdiv(keys, 16) * 16


@triton.jit
def gap(e, maximum):
    """E - maximum, without infinities; 0 where they are equal, also if both are infinite."""
    difference = e - maximum
    return tl.where(e == maximum, 0.0, tl.where(difference < -1e18, -1e18, difference))


@triton.jit
def weight(e, d, beta):
    """exp(beta d), where d = e - maximum; at an infinite beta only the maxima have weight."""
    return tl.where(e == float("-inf"), 0.0, tl.where(d == 0.0, 1.0, power(beta * d)))


@triton.jit
def power(x):
    """exp(x), or 0 where that is no normal number: GPUs have this in hardware, and no more."""
    return tl.exp2(1.4426950408889634 * x)


@triton.jit
def _tanh(x):
    """To a few roundings, also near 0, where the quotient cancels."""
    decay = power(-2.0 * tl.abs(x))
    large = (1.0 - decay) / (1.0 + decay)
    square = x * x
    small = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.15, small, tl.where(x < 0.0, -large, large))
