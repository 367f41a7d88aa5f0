"""Differentiate measure and attend, in the language of Triton.

Both kernels compute the logits e and the weights again. With x_j = p_j (g.v_j - shift), where g is
the gradient of a row of the output,

    attend (VALUES)   d / d e_j = beta x_j      d / d beta = sum x_j (e_j - maximum)
    measure           d / d e_j = exp(beta d_j) (a + c d_j) + t for logits that tie for the maximum

The numbers of a row come as `one`, `two`, `three`: log-mass, shift and nothing for attend; a, c and
t for measure.
"""

import triton
import triton.language as tl

from sharpmax._attention.impl.triton.tiles import (
    finite,
    gap,
    key_range,
    load,
    load_block,
    logits,
    operand,
    operand_block,
    power,
    product,
    row_range,
    rows_at,
    weight,
)


@triton.jit
def by_query(
    query, key, value, mask, gradient, beta, maximum, one, two, three,
    of_query, of_beta, of_mask,
    q_b, q_h, q_i, k_b, k_h, k_j, v_b, v_h, v_j, m_b, m_h, m_i, m_j,
    heads, group, queries, keys, scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, VALUES: tl.constexpr,
    BIAS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients by query and beta, and by an additive mask if BIAS."""
    batch, head, i, g, row, exists, lowest, highest = row_range(
        heads, group, queries, BLOCK_M, WINDOWED
    )
    q_rows = rows_at(query, batch, head * group + g, i, q_b, q_h, q_i)
    mask_rows = rows_at(mask, batch, head * group + g, i, m_b, m_h, m_i)
    k_base = key + batch * k_b + head * k_h
    v_base = value + batch * v_b + head * v_h
    q = operand(q_rows, exists, WIDTH, BLOCK_D, CHUNK, PRODUCT)
    temper, top, first, second, third = _row(beta, maximum, one, two, three, row, exists, VALUES)
    if VALUES:
        upstream = operand(
            gradient + row * VALUE_WIDTH, exists, VALUE_WIDTH, BLOCK_V, CHUNK, PRODUCT
        )
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    along_beta = tl.zeros([BLOCK_M], tl.float32)
    start, stop = key_range(lowest, highest, keys, left, right, offset, 0, 1, WINDOWED, BLOCK_N)
    for base in range(start, stop, BLOCK_N):
        j = base + tl.arange(0, BLOCK_N)
        here = j < stop
        k = operand_block(k_base, base, stop, k_j, WIDTH, BLOCK_N, BLOCK_D, CHUNK, PRODUCT)
        e, bent = logits(
            q, k, mask_rows, m_j, i, j, exists, here,
            scale, softcap, hidden, left, right, offset, MASKED, CAPPED, WINDOWED,
            WIDTH, CHUNK, PRODUCT, PRECISION,
        )  # fmt: skip
        if VALUES:
            v = operand_block(
                v_base, base, stop, v_j, VALUE_WIDTH, BLOCK_N, BLOCK_V, CHUNK, PRODUCT
            )
            mixed = product(upstream, v, VALUE_WIDTH, True, CHUNK, PRODUCT, PRECISION)
            p = _share(e, temper, top, first)
            x = tl.where(p == 0.0, 0.0, p * (mixed - second[:, None]))
            along_beta += tl.sum(x * gap(e, top[:, None]), 1)
            slope = _still(temper, top, temper[:, None] * x)
        else:
            slope = _of_statistics(e, temper, top, first, second, third)
        if BIAS:
            tl.store(
                of_mask + row[:, None] * keys + j[None, :],
                slope.to(of_mask.dtype.element_ty),
                mask=exists[:, None] & here[None, :],
            )
        if CAPPED:
            slope = tl.where(slope == 0.0, 0.0, slope * (1.0 - bent * bent))
        slope = (slope * scale).to(query.dtype.element_ty).to(PRODUCT)
        if CHUNK:
            k = load_block(k_base, base, stop, k_j, WIDTH, BLOCK_N, BLOCK_D).to(PRODUCT)
        acc = tl.dot(slope, finite(k), acc, input_precision=PRECISION)
    d = tl.arange(0, BLOCK_D)
    tl.store(
        of_query + row[:, None] * WIDTH + d[None, :],
        acc.to(of_query.dtype.element_ty),
        mask=exists[:, None] & (d < WIDTH)[None, :],
    )
    if VALUES:
        along_beta = tl.where(_is_still(temper, top), 0.0, along_beta)
        tl.store(of_beta + row, along_beta, mask=exists)


@triton.jit
def by_key(
    query, key, value, mask, gradient, beta, maximum, one, two, three, of_key, of_value,
    q_b, q_h, q_i, k_b, k_h, k_j, v_b, v_h, v_j, m_b, m_h, m_i, m_j,
    heads, group, queries, keys, scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, VALUES: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients by key and value: one program per block of keys, over all rows that see it."""
    blocks = tl.cdiv(keys, BLOCK_N)
    place = tl.program_id(0) // blocks
    base = tl.program_id(0) % blocks * BLOCK_N
    batch = tl.cast(place // heads, tl.int64)
    head = tl.cast(place % heads, tl.int64)
    j = base + tl.arange(0, BLOCK_N)
    here = j < keys
    k_base = key + batch * k_b + head * k_h
    v_base = value + batch * v_b + head * v_h
    k = operand_block(k_base, base, keys, k_j, WIDTH, BLOCK_N, BLOCK_D, CHUNK, PRODUCT)
    if VALUES:
        v = operand_block(v_base, base, keys, v_j, VALUE_WIDTH, BLOCK_N, BLOCK_V, CHUNK, PRODUCT)
    to_key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    to_value = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    start = 0
    stop = queries
    if WINDOWED:
        start = tl.maximum(base - right - offset, 0)
        stop = tl.minimum(base + BLOCK_N + left - offset, queries)
    for r in range(start * group, stop * group, BLOCK_M):
        rows = r + tl.arange(0, BLOCK_M)
        exists = rows < stop * group
        i = rows // group
        g = rows % group
        row = ((batch * heads + head) * group + g) * queries + i
        q_rows = rows_at(query, batch, head * group + g, i, q_b, q_h, q_i)
        mask_rows = rows_at(mask, batch, head * group + g, i, m_b, m_h, m_i)
        q = operand(q_rows, exists, WIDTH, BLOCK_D, CHUNK, PRODUCT)
        temper, top, first, second, third = _row(
            beta, maximum, one, two, three, row, exists, VALUES
        )
        e, bent = logits(
            q, k, mask_rows, m_j, i, j, exists, here,
            scale, softcap, hidden, left, right, offset, MASKED, CAPPED, WINDOWED,
            WIDTH, CHUNK, PRODUCT, PRECISION,
        )  # fmt: skip
        if VALUES:
            g_rows = gradient + row * VALUE_WIDTH
            upstream = operand(g_rows, exists, VALUE_WIDTH, BLOCK_V, CHUNK, PRODUCT)
            p = _share(e, temper, top, first)
            mixed = product(upstream, v, VALUE_WIDTH, True, CHUNK, PRODUCT, PRECISION)
            if CHUNK:
                upstream = load(g_rows, exists, VALUE_WIDTH, BLOCK_V).to(PRODUCT)
            cast = p.to(query.dtype.element_ty).to(PRODUCT)
            to_value = tl.dot(tl.trans(cast), upstream, to_value, input_precision=PRECISION)
            x = tl.where(p == 0.0, 0.0, p * (mixed - second[:, None]))
            slope = _still(temper, top, temper[:, None] * x)
        else:
            slope = _of_statistics(e, temper, top, first, second, third)
        if CAPPED:
            slope = tl.where(slope == 0.0, 0.0, slope * (1.0 - bent * bent))
        slope = (slope * scale).to(query.dtype.element_ty).to(PRODUCT)
        if CHUNK:
            q = load(q_rows, exists, WIDTH, BLOCK_D).to(PRODUCT)
        to_key = tl.dot(tl.trans(slope), finite(q), to_key, input_precision=PRECISION)
    at = (batch * heads + head) * keys + j
    d = tl.arange(0, BLOCK_D)
    tl.store(
        of_key + at[:, None] * WIDTH + d[None, :],
        to_key.to(of_key.dtype.element_ty),
        mask=here[:, None] & (d < WIDTH)[None, :],
    )
    if VALUES:
        d = tl.arange(0, BLOCK_V)
        tl.store(
            of_value + at[:, None] * VALUE_WIDTH + d[None, :],
            to_value.to(of_value.dtype.element_ty),
            mask=here[:, None] & (d < VALUE_WIDTH)[None, :],
        )


@triton.jit
def _row(beta, maximum, one, two, three, row, exists, VALUES: tl.constexpr):
    """The numbers of each row."""
    temper = tl.load(beta + row, mask=exists, other=1.0)
    top = tl.load(maximum + row, mask=exists, other=0.0)
    first = tl.load(one + row, mask=exists, other=0.0)
    second = tl.load(two + row, mask=exists, other=0.0)
    third = first
    if not VALUES:
        third = tl.load(three + row, mask=exists, other=0.0)
    return temper, top, first, second, third


@triton.jit
def _ties(e, top):
    """Whether logits are the maximum, up to the rounding of another order of summation."""
    return e >= (top - 5e-7 * (1.0 + tl.abs(top)))[:, None]


@triton.jit
def _share(e, temper, top, log_mass):
    """softmax(beta e), from the log of the mass."""
    p = weight(e, gap(e, top[:, None]), temper[:, None])
    hard = (temper == float("inf"))[:, None]
    p = tl.where(hard, tl.where(_ties(e, top) & (e != float("-inf")), 1.0, 0.0), p)
    return p * power(-log_mass)[:, None]


@triton.jit
def _is_still(temper, top):
    """Whether the weights of a row do not move: beta or the largest logit is infinite."""
    return (temper == float("inf")) | (tl.abs(top) == float("inf"))


@triton.jit
def _still(temper, top, slope):
    return tl.where(_is_still(temper, top)[:, None], 0.0, slope)


@triton.jit
def _of_statistics(e, temper, top, first, second, third):
    d = gap(e, top[:, None])
    w = weight(e, d, temper[:, None])
    slope = tl.where(w == 0.0, 0.0, w * (first[:, None] + second[:, None] * d))
    slope += tl.where(_ties(e, top) & (e != float("-inf")), third[:, None], 0.0)
    return _still(temper, top, slope)
