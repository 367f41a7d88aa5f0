"""What the kernels share: rows, ranges of keys, tiles, logits, logits that are kept, weights."""

import triton
import triton.language as tl


@triton.jit
def row_range(heads, group, queries, BLOCK_M: tl.constexpr, LAST_FIRST: tl.constexpr):
    """The rows of a program.

    Returns batch, key head, query and head in the group of each row, its place in arrays over rows,
    whether it exists, and the first and the last query. Row 0 of a program is a multiple of
    BLOCK_M.
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
def load(rows, exists, WIDTH, BLOCK: tl.constexpr):
    """Rows of WIDTH numbers, padded with zeros to BLOCK; `rows` points to the first of each.

    They begin at multiples of 16 bytes, as `launch.aligned` lays them out.
    """
    d = tl.arange(0, BLOCK)
    return tl.load(
        tl.multiple_of(rows[:, None] + d[None, :], [1, 16]),
        mask=exists[:, None] & (d < WIDTH)[None, :],
        other=0.0,
    )


@triton.jit
def load_block(
    first, base, stop, step,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The keys or values from `base` on, BLOCK_N of them; `first` points to key 0 of a head."""
    rows = first + tl.cast(base, tl.int64) * step + tl.arange(0, BLOCK_N) * step
    return load(rows, base + tl.arange(0, BLOCK_N) < stop, WIDTH, BLOCK)


@triton.jit
def operand(
    rows, exists,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Rows for `product`: the numbers, or where they are if CHUNK of a row are taken at a time."""
    if CHUNK:
        return rows, exists
    else:  # noqa: RET505  (known when it is compiled)
        return load(rows, exists, WIDTH, BLOCK).to(PRODUCT)


@triton.jit
def operand_block(
    first, base, stop, step,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """`operand` of the keys or values from `base` on, as `load_block` takes them."""
    rows = first + tl.cast(base, tl.int64) * step + tl.arange(0, BLOCK_N) * step
    return operand(rows, base + tl.arange(0, BLOCK_N) < stop, WIDTH, BLOCK, CHUNK, PRODUCT)


@triton.jit
def product(
    a, b, WIDTH: tl.constexpr, FINITE: tl.constexpr,
    CHUNK: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The products of all rows of two operands, if FINITE with zero for infinities and NaN of b.

    Matrix units take a whole row into registers. Rows of single precision do not fit, so that
    their products are made of chunks.
    """
    if CHUNK:
        a_rows, a_exists = a
        b_rows, b_exists = b
        found = tl.zeros([a_rows.shape[0], b_rows.shape[0]], tl.float32)
        for start in range(0, WIDTH, CHUNK):
            left = load(a_rows + start, a_exists, WIDTH - start, CHUNK)
            right = load(b_rows + start, b_exists, WIDTH - start, CHUNK)
            right = finite(right.to(PRODUCT)) if FINITE else right.to(PRODUCT)
            found = tl.dot(left.to(PRODUCT), tl.trans(right), found, input_precision=PRECISION)
        return found
    else:  # noqa: RET505
        return tl.dot(a, tl.trans(finite(b) if FINITE else b), input_precision=PRECISION)


@triton.jit
def finite(x):
    """Zero in place of what is not finite."""
    return tl.where(x - x == 0.0, x, 0.0)


@triton.jit
def logits(
    q, k, mask_rows, m_j, i, j, exists, here,
    scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The logits of rows and keys, -inf where a key is hidden; and tanh of the soft cap.

    MASKED is "boolean", "additive" or "".
    """
    e, bent = capped(q, k, scale, softcap, CAPPED, WIDTH, CHUNK, PRODUCT, PRECISION)
    e = hide(e, mask_rows, m_j, i, j, exists, here, hidden, left, right, offset, MASKED, WINDOWED)
    return e, bent


@triton.jit
def capped(
    q, k, scale, softcap, CAPPED: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, PRODUCT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Logits before masks, and tanh of the soft cap."""
    e = product(q, k, WIDTH, False, CHUNK, PRODUCT, PRECISION) * scale
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
def keep(rows, keys, base, e, exists, here, BITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write a block of logits for `kept` to read; `rows` points to the bytes of each row.

    A row is the largest logit of each block, in single precision, then what all logits are below
    it, in BITS bits each. A weight exp(beta d) then has a relative error of at most

        12 bits   beta (|d| + 2^-8) / 2^9, up to |d| = 254, where it stays
        24 bits   beta |d| / 2^17, whatever beta is

    and 32 bits keep the logit itself. For 64 keys the first moves an output by at most 2^-8.8 of
    the largest difference of their values, if beta is as `coarse_enough` asks. Rounding the weights
    to bfloat16, as all kernels do before they multiply values, may move it by 2^-9.
    """
    peak = tl.max(e, 1)
    tl.store(_peaks(rows) + base // BLOCK_N, peak, mask=exists)
    column = tl.arange(0, BLOCK_N)
    j = base + column
    there = exists[:, None] & here[None, :]
    first = rows + _after_peaks(keys, BLOCK_N)
    if BITS == 12:
        # The bits of a float above 2^-8 are a logarithm in steps of 2^-8, which never goes down.
        x = tl.minimum(-gap(e, peak[:, None]), 254.0) + 0.00390625
        code = (x.to(tl.int32, bitcast=True) - 0x3B800000 + 0x4000) >> 15
        code = tl.where(e == float("-inf"), 4095, code)
        tl.store(first[:, None] + j[None, :], (code >> 4).to(tl.uint8), mask=there)
        # Keys of the second half of a block share bytes with those of the first.
        half: tl.constexpr = BLOCK_N // 2
        lower = tl.where(here[None, :], code & 15, 0) << (column // half * 4)[None, :]
        pair = tl.sum(tl.reshape(lower, [e.shape[0], 2, half]), 1)
        place = tl.arange(0, half)
        tl.store(
            (first + _up(keys, 16) + base // 2)[:, None] + place[None, :],
            pair.to(tl.uint8),
            mask=exists[:, None] & (base + place < keys)[None, :],
        )
    elif BITS == 24:
        d = tl.where(e == float("-inf"), e, gap(e, peak[:, None]))
        bits = d.to(tl.int32, bitcast=True)
        bits = tl.where(d == d, bits + 0x80, bits)  # to the nearest; NaN stays NaN
        high = first.to(tl.pointer_type(tl.int16), bitcast=True)
        tl.store(high[:, None] + j[None, :], (bits >> 16).to(tl.int16), mask=there)
        low = first + 2 * _up(keys, 16)
        tl.store(low[:, None] + j[None, :], (bits >> 8 & 0xFF).to(tl.uint8), mask=there)
    else:
        whole = first.to(tl.pointer_type(tl.float32), bitcast=True)
        tl.store(whole[:, None] + j[None, :], e, mask=there)


@triton.jit
def coarse_enough(beta, maximum, exists):
    """Whether logits in 12 bits give weights to half precision. NaN is lost in 12 bits."""
    fits = (beta >= 0.125) & (beta <= 128.0) & (maximum == maximum)
    return tl.min(tl.where(fits | ~exists, 1, 0), 0) > 0


@triton.jit
def kept_peak(rows, base, exists, BLOCK_N: tl.constexpr):
    """The largest logit of each row in the block at `base`."""
    return tl.load(_peaks(rows) + base // BLOCK_N, mask=exists, other=float("-inf"))


@triton.jit
def kept(rows, keys, base, exists, here, BITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """A block of logits that `keep` wrote."""
    column = tl.arange(0, BLOCK_N)
    j = base + column
    there = exists[:, None] & here[None, :]
    first = rows + _after_peaks(keys, BLOCK_N)
    if BITS == 32:
        whole = first.to(tl.pointer_type(tl.float32), bitcast=True)
        return tl.load(whole[:, None] + j[None, :], mask=there, other=float("-inf"))
    else:  # noqa: RET505
        peak = kept_peak(rows, base, exists, BLOCK_N)[:, None]
        if BITS == 12:
            half: tl.constexpr = BLOCK_N // 2
            upper = tl.load(first[:, None] + j[None, :], mask=there, other=255)
            pairs = first + _up(keys, 16) + base // 2
            lower = tl.load(pairs[:, None] + (column % half)[None, :], mask=there, other=255)
            lower = (lower.to(tl.int32) >> (column // half * 4)[None, :]) & 15
            code = upper.to(tl.int32) << 4 | lower
            d = 0.00390625 - ((code << 15) + 0x3B800000).to(tl.float32, bitcast=True)
            d = tl.where(code == 4095, float("-inf"), d)
        else:
            high = first.to(tl.pointer_type(tl.int16), bitcast=True)
            low = first + 2 * _up(keys, 16)
            upper = tl.load(high[:, None] + j[None, :], mask=there, other=-128)  # that of -inf
            lower = tl.load(low[:, None] + j[None, :], mask=there, other=0)
            bits = upper.to(tl.int32) << 16 | lower.to(tl.int32) << 8
            d = bits.to(tl.float32, bitcast=True)
        # Beside an infinite logit the others have no weight, wherever they are.
        return tl.where(d == 0.0, peak, tl.where(peak == float("inf"), d, peak + d))


@triton.jit
def _peaks(rows):
    return rows.to(tl.pointer_type(tl.float32), bitcast=True)


@triton.jit
def _after_peaks(keys, BLOCK_N: tl.constexpr):
    return _up(4 * tl.cdiv(keys, BLOCK_N), 16)


@triton.jit
def _up(number, step):
    return tl.cdiv(number, step) * step


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
