"""Measure rows and attend, in the language of Triton.

One program serves BLOCK_M rows of one key head and one share of the keys (a split). All query heads
that share a key head are rows of the same program: row r is query r // group of head r % group, so
that every key is read once for the whole group. Logits, statistics and sums are in float32.
"""

import triton
import triton.language as tl

from sharpmax._attention.impl.triton.tiles import (
    capped,
    coarse_enough,
    gap,
    hide,
    keep,
    kept,
    kept_peak,
    key_range,
    load_block,
    logits,
    operand,
    operand_block,
    power,
    row_range,
    rows_at,
    seen_whole,
    visibility,
    weight,
)


@triton.jit
def measure(
    query, key, mask, beta, scores, maximum, mass, moment, square, count, ties,
    q_b, q_h, q_i, k_b, k_h, k_j, m_b, m_h, m_i, m_j,
    heads, group, queries, keys, scale, softcap, hidden, left, right, offset, splits, apart,
    score_bytes,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    TEMPERED: tl.constexpr, TIED: tl.constexpr, SCORES: tl.constexpr, BITS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums of exp(beta d), d exp(beta d) and d^2 exp(beta d), where d = e - maximum.

    Without TEMPERED beta is 1, and the last sum is not made. SCORES is "write" to keep the logits,
    "read" to use those that were kept, or "". With TIED, logits that tie for the maximum are
    counted as well. Each split writes its own results, `apart` numbers after those of the one
    before.
    """
    split = tl.program_id(1)
    batch, head, i, g, row, exists, lowest, highest = row_range(
        heads, group, queries, BLOCK_M, WINDOWED
    )
    q_rows = rows_at(query, batch, head * group + g, i, q_b, q_h, q_i)
    mask_rows = rows_at(mask, batch, head * group + g, i, m_b, m_h, m_i)
    score_rows = scores + row * score_bytes
    k_base = key + batch * k_b + head * k_h
    # Not compiled if nothing reads it.
    q = operand(q_rows, exists, WIDTH, BLOCK_D, CHUNK, PRODUCT)
    temper = tl.full([BLOCK_M], 1.0, tl.float32)
    if TEMPERED:
        temper = tl.load(beta + row, mask=exists, other=1.0)
    start, stop = key_range(
        lowest, highest, keys, left, right, offset, split, splits, WINDOWED, BLOCK_N
    )
    quick: tl.constexpr = MASKED == "" and SCORES == ""
    top, total, first, second, seen, level = _sums(
        q, k_base, mask_rows, score_rows, temper, i, exists, lowest, highest, start, stop, keys,
        k_j, m_j, scale, softcap, hidden, left, right, offset,
        MASKED, CAPPED, WINDOWED, TEMPERED, TIED, SCORES, BITS, quick,
        WIDTH, BLOCK_M, BLOCK_N, BLOCK_D, PRODUCT, PRECISION, CHUNK,
    )  # fmt: skip
    if quick:
        # A logit that is not finite, or a beta, makes a sum NaN.
        sums = total + first
        if TEMPERED:
            sums += second
        if tl.max(tl.where(exists & (sums - sums != 0.0), 1, 0), 0) > 0:
            top, total, first, second, seen, level = _sums(
                q, k_base, mask_rows, score_rows, temper, i, exists, lowest, highest, start, stop,
                keys, k_j, m_j, scale, softcap, hidden, left, right, offset,
                MASKED, CAPPED, WINDOWED, TEMPERED, TIED, SCORES, BITS, False,
                WIDTH, BLOCK_M, BLOCK_N, BLOCK_D, PRODUCT, PRECISION, CHUNK,
            )  # fmt: skip

    at = tl.cast(split, tl.int64) * apart + row
    tl.store(maximum + at, tl.where(total == total, top, total), mask=exists)
    tl.store(mass + at, total, mask=exists)
    tl.store(moment + at, first, mask=exists)
    tl.store(count + at, seen, mask=exists)
    if TEMPERED:
        tl.store(square + at, second, mask=exists)
    if TIED:
        tl.store(ties + at, level, mask=exists)


@triton.jit
def _sums(
    q, k_base, mask_rows, score_rows, temper, i, exists, lowest, highest, start, stop, keys,
    k_j, m_j, scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, TEMPERED: tl.constexpr,
    TIED: tl.constexpr, SCORES: tl.constexpr, BITS: tl.constexpr, QUICK: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Maximum, the three sums, visible keys and ties, over the keys from start to stop.

    If QUICK, blocks that all rows see whole are taken to hold finite logits only; if one is not,
    a sum is NaN.
    """
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    first = tl.zeros([BLOCK_M], tl.float32)
    second = tl.zeros([BLOCK_M], tl.float32)
    seen = tl.zeros([BLOCK_M], tl.int32)
    level = tl.zeros([BLOCK_M], tl.float32)
    for base in range(start, stop, BLOCK_N):
        j = base + tl.arange(0, BLOCK_N)
        here = j < stop
        plain = False
        if QUICK:
            plain = seen_whole(base, stop, lowest, highest, left, right, offset, WINDOWED, BLOCK_N)
        if SCORES == "read":
            e = kept(score_rows, keys, base, exists, here, BITS, BLOCK_N)
        else:
            k = operand_block(k_base, base, stop, k_j, WIDTH, BLOCK_N, BLOCK_D, CHUNK, PRODUCT)
            e, _ = capped(q, k, scale, softcap, CAPPED, WIDTH, CHUNK, PRODUCT, PRECISION)
        if plain:
            new_top = tl.maximum(top, tl.max(e, 1))
            d = e - new_top[:, None]
            w = power(temper[:, None] * d) if TEMPERED else power(d)
            visible = tl.full([BLOCK_M], BLOCK_N, tl.int32)
            tied = tl.sum(tl.where(d == 0.0, 1.0, 0.0), 1) if TIED else level
        else:
            if SCORES != "read":
                e = hide(
                    e, mask_rows, m_j, i, j, exists, here, hidden, left, right, offset,
                    MASKED, WINDOWED,
                )  # fmt: skip
            if SCORES == "write":
                keep(score_rows, keys, base, e, exists, here, BITS, BLOCK_N)
            new_top = tl.maximum(top, tl.max(e, 1))
            d = gap(e, new_top[:, None])
            if TEMPERED:
                w = weight(e, d, temper[:, None])
            else:
                w = tl.where(e == float("-inf"), 0.0, power(d))
            visible = tl.sum((e != float("-inf")).to(tl.int32), 1)
            tied = level
            if TIED:
                tied = tl.sum(tl.where((e != float("-inf")) & (d == 0.0), 1.0, 0.0), 1)
        shift = gap(top, new_top)
        if TEMPERED:
            factor = weight(top, shift, temper)
            second = factor * (second + shift * (2.0 * first + shift * total))
            second += tl.sum(w * d * d, 1)
        else:
            factor = power(shift)
        first = factor * (first + shift * total) + tl.sum(w * d, 1)
        total = factor * total + tl.sum(w, 1)
        seen += visible
        if TIED:
            level = tl.where(shift == 0.0, level, 0.0) + tied
        top = new_top
    return top, total, first, second, seen, level


@triton.jit
def count_visible(
    query, key, mask, unsure, count,
    q_b, q_h, q_i, k_b, k_h, k_j, m_b, m_h, m_i, m_j,
    heads, group, queries, keys, scale, softcap, hidden, left, right, offset,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """How many keys each row sees, from positions and mask alone.

    If `unsure` points to a number other than 0, a product of query and key may be -inf, which does
    not count: then the logits are made.
    """
    batch, head, i, g, row, exists, lowest, highest = row_range(
        heads, group, queries, BLOCK_M, WINDOWED
    )
    mask_rows = rows_at(mask, batch, head * group + g, i, m_b, m_h, m_i)
    start, stop = key_range(lowest, highest, keys, left, right, offset, 0, 1, WINDOWED, BLOCK_N)
    seen = tl.zeros([BLOCK_M], tl.int32)
    if tl.load(unsure) != 0:
        q_rows = rows_at(query, batch, head * group + g, i, q_b, q_h, q_i)
        k_base = key + batch * k_b + head * k_h
        q = operand(q_rows, exists, WIDTH, BLOCK_D, CHUNK, PRODUCT)
        for base in range(start, stop, BLOCK_N):
            j = base + tl.arange(0, BLOCK_N)
            k = operand_block(k_base, base, stop, k_j, WIDTH, BLOCK_N, BLOCK_D, CHUNK, PRODUCT)
            e, _ = logits(
                q, k, mask_rows, m_j, i, j, exists, j < stop,
                scale, softcap, hidden, left, right, offset, MASKED, CAPPED, WINDOWED,
                WIDTH, CHUNK, PRODUCT, PRECISION,
            )  # fmt: skip
            seen += tl.sum((e != float("-inf")).to(tl.int32), 1)
    elif MASKED != "":
        for base in range(start, stop, BLOCK_N):
            j = base + tl.arange(0, BLOCK_N)
            visible, _ = visibility(
                mask_rows, m_j, i, j, exists, j < stop, hidden, left, right, offset,
                MASKED, WINDOWED,
            )  # fmt: skip
            seen += tl.sum(visible.to(tl.int32), 1)
    else:
        # Without a window, `left` and `right` are farther than any key.
        first = tl.maximum(i + offset - left, 0)
        seen = tl.maximum(tl.minimum(i + offset + right, keys - 1) - first + 1, 0)
    tl.store(count + row, seen, mask=exists)


@triton.jit
def attend(
    query, key, value, mask, beta, scores, known, output, maximum, relative, odd,
    q_b, q_h, q_i, k_b, k_h, k_j, v_b, v_h, v_j, m_b, m_h, m_i, m_j,
    heads, group, queries, keys, scale, softcap, hidden, left, right, offset, splits, apart,
    score_bytes, negligible,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    KNOWN: tl.constexpr, SCORES: tl.constexpr, BITS: tl.constexpr, CAREFUL: tl.constexpr,
    RATIO: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """softmax(beta e) V, the largest logit, and log(sum exp(beta (e - maximum))).

    A block of keys is skipped if none of its weights is above exp(negligible), relative to the
    largest weight so far. If the maximum is known, that is the largest weight of all.

    A program that meets a value that is not finite writes so to `odd`. Launched once more with
    CAREFUL, the rows of those programs are done again, by programs of 1 / RATIO as many rows. The
    others end at once.
    """
    split = tl.program_id(1)
    batch, head, i, g, row, exists, lowest, highest = row_range(
        heads, group, queries, BLOCK_M, WINDOWED
    )
    places = tl.num_programs(0) // tl.cdiv(queries * group, BLOCK_M)
    blocks = tl.cdiv(queries * group, BLOCK_M * RATIO)
    program = (batch * heads + head) * blocks + tl.min(i * group + g, 0) // (BLOCK_M * RATIO)
    if CAREFUL:
        # These programs may divide the keys in another way, so that all splits are done again.
        each = tl.arange(0, 128)
        met = tl.load(odd + program + each * places * blocks, mask=each < splits, other=0)
        if tl.max(met, 0) == 0:
            return
    q_rows = rows_at(query, batch, head * group + g, i, q_b, q_h, q_i)
    mask_rows = rows_at(mask, batch, head * group + g, i, m_b, m_h, m_i)
    score_rows = scores + row * score_bytes
    k_base = key + batch * k_b + head * k_h
    v_base = value + batch * v_b + head * v_h
    # Not compiled if nothing reads it.
    q = operand(q_rows, exists, WIDTH, BLOCK_D, CHUNK, PRODUCT)
    temper = tl.load(beta + row, mask=exists, other=1.0)
    expected = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if KNOWN:
        expected = tl.load(known + row, mask=exists, other=float("-inf"))
    start, stop = key_range(
        lowest, highest, keys, left, right, offset, split, splits, WINDOWED, BLOCK_N
    )
    acc, top, total = _sweep(
        q, k_base, v_base, mask_rows, score_rows, temper, expected, i, exists, lowest, highest,
        start, stop, keys,
        k_j, v_j, m_j, scale, softcap, hidden, left, right, offset, negligible,
        MASKED, CAPPED, WINDOWED, SCORES, BITS, CAREFUL, WIDTH, VALUE_WIDTH,
        BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_V, PRODUCT, PRECISION, CHUNK,
    )  # fmt: skip
    if not CAREFUL:
        # Zero times an infinite value is NaN, although a value without weight does not count. And
        # rounding may put all logits of a sharp row below the maximum that is known.
        again = tl.max(tl.max(tl.where(acc - acc == 0.0, 0, 1), 1), 0)
        if KNOWN:
            again += tl.max(tl.where((total == 0.0) & (expected != float("-inf")), 1, 0), 0)
        tl.store(odd + split * places * blocks + program, again)
    some = tl.where(total == 0.0, 1.0, total)
    at = tl.cast(split, tl.int64) * apart + row
    tl.store(maximum + at, tl.where(total == total, top, total), mask=exists)
    tl.store(relative + at, tl.where(total == 0.0, 0.0, tl.log(some)), mask=exists)
    v = tl.arange(0, BLOCK_V)
    tl.store(
        output + at[:, None] * VALUE_WIDTH + v[None, :],
        (acc / some[:, None]).to(output.dtype.element_ty),
        mask=exists[:, None] & (v < VALUE_WIDTH)[None, :],
    )


@triton.jit
def _sweep(
    q, k_base, v_base, mask_rows, score_rows, temper, expected, i, exists, lowest, highest,
    start, stop, keys, k_j, v_j, m_j, scale, softcap, hidden, left, right, offset,
    negligible,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, SCORES: tl.constexpr,
    BITS: tl.constexpr, CAREFUL: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PRODUCT: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The weighted sum of the values, the largest logit, and the sum of the weights.

    If CAREFUL, no block is skipped, and a value that is not finite counts where it has a weight.
    Otherwise blocks that all rows see whole are taken to hold finite logits only; if one is not,
    a sum is NaN.
    """
    quick: tl.constexpr = MASKED == "" and SCORES == "" and not CAREFUL
    soft = True
    if quick:
        soft = tl.max(tl.where(temper == float("inf"), 1, 0), 0) == 0
    enough = True
    if BITS == 12:
        enough = coarse_enough(temper, expected, exists)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for base in range(start, stop, BLOCK_N):
        j = base + tl.arange(0, BLOCK_N)
        here = j < stop
        plain = False
        if quick:
            plain = soft & seen_whole(
                base, stop, lowest, highest, left, right, offset, WINDOWED, BLOCK_N
            )
        if SCORES == "read":
            largest = kept_peak(score_rows, base, exists, BLOCK_N)
        else:
            k = operand_block(k_base, base, stop, k_j, WIDTH, BLOCK_N, BLOCK_D, CHUNK, PRODUCT)
            e, _ = capped(q, k, scale, softcap, CAPPED, WIDTH, CHUNK, PRODUCT, PRECISION)
            if not plain:
                e = hide(
                    e, mask_rows, m_j, i, j, exists, here, hidden, left, right, offset,
                    MASKED, WINDOWED,
                )  # fmt: skip
            largest = tl.max(e, 1)
        new_top = tl.maximum(top, largest)
        wanted = 1
        if not CAREFUL:
            distance = temper * (largest - tl.maximum(new_top, expected))
            weightless = ~exists | (largest == float("-inf")) | (distance < negligible)
            wanted = tl.max(tl.where(weightless, 0, 1), 0)
        if wanted > 0:
            if SCORES == "read":
                if enough:
                    e = kept(score_rows, keys, base, exists, here, BITS, BLOCK_N)
                else:
                    k = operand_block(
                        k_base, base, stop, k_j, WIDTH, BLOCK_N, BLOCK_D, CHUNK, PRODUCT
                    )
                    e, _ = logits(
                        q, k, mask_rows, m_j, i, j, exists, here,
                        scale, softcap, hidden, left, right, offset, MASKED, CAPPED, WINDOWED,
                        WIDTH, CHUNK, PRODUCT, PRECISION,
                    )  # fmt: skip
            v = load_block(v_base, base, stop, v_j, VALUE_WIDTH, BLOCK_N, BLOCK_V)
            if plain:
                p = power(temper[:, None] * (e - new_top[:, None]))
            else:
                p = weight(e, gap(e, new_top[:, None]), temper[:, None])
            factor = weight(top, gap(top, new_top), temper)
            total = factor * total + tl.sum(p, 1)
            acc = acc * factor[:, None]
            p = p.to(v.dtype).to(PRODUCT)
            if CAREFUL:
                acc = tl.where(factor[:, None] == 0.0, 0.0, acc)
                seen = tl.where(p == 0.0, 0.0, 1.0).to(PRODUCT)
                v = v.to(tl.float32)  # the interpreter has no arithmetic in bfloat16
                finite = v - v == 0.0
                # How often +inf, and 128 times how often -inf; NaN is both.
                ends = tl.where(finite | (v == float("-inf")), 0.0, 1.0)
                ends += tl.where(finite | (v == float("inf")), 0.0, 128.0)
                met = tl.dot(seen, ends.to(PRODUCT))
                below = tl.floor(met / 128.0)
                acc += tl.where(met > 128.0 * below, float("inf"), 0.0)
                acc -= tl.where(below > 0.0, float("inf"), 0.0)
                v = tl.where(finite, v, 0.0)
            acc = tl.dot(p, v.to(PRODUCT), acc, input_precision=PRECISION)
            top = new_top
    return acc, top, total
