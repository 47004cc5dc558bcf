"""Triton kernels over jagged sequences, each written from its mathematics: attention whose scores
go through SiLU in place of a softmax, norms, gated ones with dropout, joins, sums of rows.

It is imported where there is a CUDA device (or Triton's interpreter, in tests). Operands lie one
sequence after the other, `offsets` say where each begins. Queries, keys and values of a position,
and gradients of the last two, lie `STRIDE` values after those of the position before; all else
follows without a gap.

A position sees itself and those before it. The first `CONTEXT` positions see one another, the last
`TARGETS` of a sequence do not: `id = clamp(position - CONTEXT + 1, 0, first target's)`, and a row
sees a column of a smaller id, of its own place, or of id 0 if its own is 0.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language import constexpr

jit: Any = triton.jit


@jit
def _seen(rows, columns, length, CONTEXT: constexpr, TARGETS: constexpr):
    last = length - TARGETS - CONTEXT + 1
    row_ids = tl.minimum(tl.maximum(rows - CONTEXT + 1, 0), last)
    column_ids = tl.minimum(tl.maximum(columns - CONTEXT + 1, 0), last)
    seen = (row_ids > column_ids) | (rows == columns) | ((row_ids == 0) & (column_ids == 0))
    return seen & (rows < length) & (columns < length)


@jit
def attention_forward(
    q,
    k,
    v,
    out,
    offsets,
    alpha,
    scale,
    STRIDE: constexpr,
    HEADS: constexpr,
    DIM: constexpr,
    CONTEXT: constexpr,
    TARGETS: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
):
    """`out_i = scale * sum over seen j of silu(alpha q_i k_j) v_j`; a program per block of rows, of
    each sequence and head."""
    first = tl.program_id(0) * ROWS
    sample, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    start = tl.load(offsets + sample)
    length = (tl.load(offsets + sample + 1) - start).to(tl.int32)
    if first < length:
        base, wide = start * STRIDE + head * DIM, tl.arange(0, DIM)
        rows = first + tl.arange(0, ROWS)
        of_rows = base + rows[:, None] * STRIDE + wide[None, :]
        queries = tl.load(q + of_rows, mask=rows[:, None] < length, other=0.0)
        total = tl.zeros((ROWS, DIM), tl.float32)
        for column in range(0, tl.minimum(first + ROWS, length), COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            of_columns = base + columns[:, None] * STRIDE + wide[None, :]
            there = columns[:, None] < length
            keys = tl.load(k + of_columns, mask=there, other=0.0)
            scores = tl.dot(queries, tl.trans(keys)) * alpha
            weights = scores / (1.0 + tl.exp(-scores)) * scale
            seen = _seen(rows[:, None], columns[None, :], length, CONTEXT, TARGETS)
            weights = tl.where(seen, weights, 0.0)
            values = tl.load(v + of_columns, mask=there, other=0.0)
            total += tl.dot(weights.to(values.dtype), values)
        of_rows = ((start + rows[:, None]) * HEADS + head) * DIM + wide[None, :]
        tl.store(out + of_rows, total.to(out.dtype.element_ty), mask=rows[:, None] < length)


@jit
def attention_backward(
    q,
    k,
    v,
    of_out,
    of_q,
    of_k,
    of_v,
    offsets,
    alpha,
    scale,
    STRIDE: constexpr,
    HEADS: constexpr,
    DIM: constexpr,
    CONTEXT: constexpr,
    TARGETS: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    ATOMIC: constexpr,
):
    """Gradients of keys and values, written, and of queries, added to `of_q` (fp32, zero before).

    `ATOMIC`: a program per block of keys, which adds to `of_q` by atomics. Else one per sequence
    and head, which goes over its blocks in turn and reads, adds and writes.
    """
    sample, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    start = tl.load(offsets + sample)
    length = (tl.load(offsets + sample + 1) - start).to(tl.int32)
    base, wide = start * STRIDE + head * DIM, tl.arange(0, DIM)
    begin = tl.program_id(0) * COLUMNS
    end = tl.minimum(begin + COLUMNS, length) if ATOMIC else length
    for column in range(begin, end, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        of_columns = base + columns[:, None] * STRIDE + wide[None, :]
        there = columns[:, None] < length
        keys = tl.load(k + of_columns, mask=there, other=0.0)
        values = tl.load(v + of_columns, mask=there, other=0.0)
        of_keys = tl.zeros((COLUMNS, DIM), tl.float32)
        of_values = tl.zeros((COLUMNS, DIM), tl.float32)
        for row in range(column // ROWS * ROWS, length, ROWS):
            rows = row + tl.arange(0, ROWS)
            inside = rows[:, None] < length
            of_rows = base + rows[:, None] * STRIDE + wide[None, :]
            queries = tl.load(q + of_rows, mask=inside, other=0.0)
            of_rows = ((start + rows[:, None]) * HEADS + head) * DIM + wide[None, :]
            given = tl.load(of_out + of_rows, mask=inside, other=0.0)
            scores = tl.dot(keys, tl.trans(queries)) * alpha
            gate = 1.0 / (1.0 + tl.exp(-scores))
            seen = _seen(rows[None, :], columns[:, None], length, CONTEXT, TARGETS)
            weights = tl.where(seen, scores * gate * scale, 0.0)
            of_values += tl.dot(weights.to(given.dtype), given)
            of_weights = tl.dot(values, tl.trans(given))
            slope = gate * (1.0 + scores * (1.0 - gate)) * (scale * alpha)
            of_scores = tl.where(seen, of_weights * slope, 0.0).to(queries.dtype)
            of_keys += tl.dot(of_scores, queries)
            added = tl.dot(tl.trans(of_scores), keys)
            if ATOMIC:
                tl.atomic_add(of_q + of_rows, added, mask=inside, sem="relaxed")
            else:
                before = tl.load(of_q + of_rows, mask=inside, other=0.0)
                tl.store(of_q + of_rows, before + added, mask=inside)
        tl.store(of_k + of_columns, of_keys.to(of_k.dtype.element_ty), mask=there)
        tl.store(of_v + of_columns, of_values.to(of_v.dtype.element_ty), mask=there)


@jit
def _normed(x, eps, COLS: constexpr):
    centred = x - (tl.sum(x, 1) / COLS)[:, None]
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / COLS + eps)
    return centred * inverse[:, None], inverse[:, None]


@jit
def norm_forward(x, weight, bias, out, count, COLS: constexpr, ROWS: constexpr, SWISH: constexpr):
    """`LayerNorm(x)`, or `x * sigmoid(LayerNorm(x))`."""
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    at, there = rows[:, None] * COLS + cols[None, :], rows[:, None] < count
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    normed, _ = _normed(value, 1e-6, COLS)
    scaled = normed * tl.load(weight + cols)[None, :] + tl.load(bias + cols)[None, :]
    made = value / (1.0 + tl.exp(-scaled)) if SWISH else scaled
    tl.store(out + at, made.to(out.dtype.element_ty), mask=there)


@jit
def _through_norm(of_scaled, normed, inverse, scales, COLS: constexpr):
    of_normed = of_scaled * scales
    along = tl.sum(of_normed * normed, 1)[:, None] / COLS
    return (of_normed - tl.sum(of_normed, 1)[:, None] / COLS - normed * along) * inverse


@jit
def norm_backward(
    given,
    x,
    weight,
    bias,
    of_x,
    of_weight,
    of_bias,
    count,
    COLS: constexpr,
    ROWS: constexpr,
    SWISH: constexpr,
):
    """Programs go over rows in strides; each writes its own share of the weights' gradients."""
    cols = tl.arange(0, COLS)
    sum_weight, sum_bias = tl.zeros((COLS,), tl.float32), tl.zeros((COLS,), tl.float32)
    scales, shifts = tl.load(weight + cols)[None, :], tl.load(bias + cols)[None, :]
    for row in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        rows = row + tl.arange(0, ROWS)
        at, there = rows[:, None] * COLS + cols[None, :], rows[:, None] < count
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        of_scaled = tl.load(given + at, mask=there, other=0.0).to(tl.float32)
        normed, inverse = _normed(value, 1e-6, COLS)
        direct = tl.zeros((ROWS, COLS), tl.float32)
        if SWISH:
            gate = 1.0 / (1.0 + tl.exp(-(normed * scales + shifts)))
            direct = of_scaled * gate
            of_scaled = of_scaled * value * gate * (1.0 - gate)
        sum_weight += tl.sum(of_scaled * normed, 0)
        sum_bias += tl.sum(of_scaled, 0)
        made = direct + _through_norm(of_scaled, normed, inverse, scales, COLS)
        tl.store(of_x + at, made.to(of_x.dtype.element_ty), mask=there)
    own = tl.program_id(0) * COLS + cols
    tl.store(of_weight + own, sum_weight)
    tl.store(of_bias + own, sum_bias)


@jit
def _kept(seed, at, share, DROPS: constexpr):
    """Three factors per place, from one call of Philox: 0 for what is dropped."""
    if DROPS:
        first, second, third, _ = tl.rand4x(seed, at)
        a, b, c, factor = first < share, second < share, third < share, 1.0 / share
        return tl.where(a, factor, 0.0), tl.where(b, factor, 0.0), tl.where(c, factor, 0.0)
    one = tl.full(at.shape, 1.0, tl.float32)
    return one, one, one


@jit
def gated_forward(
    x, u, weight, bias, out, count, seed, share, COLS: constexpr, ROWS: constexpr, DROPS: constexpr
):
    """`u`, `x` and `LayerNorm(x) * u` beside one another, each with dropout of its own."""
    rows, cols = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    at, there = rows[:, None] * COLS + cols[None, :], rows[:, None] < count
    attended = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    gate = tl.load(u + at, mask=there, other=0.0).to(tl.float32)
    normed, _ = _normed(attended, 1e-6, COLS)
    scaled = normed * tl.load(weight + cols)[None, :] + tl.load(bias + cols)[None, :]
    first, second, third = _kept(seed, at, share, DROPS)
    to = rows[:, None].to(tl.int64) * (3 * COLS) + cols[None, :]
    kind = out.dtype.element_ty
    tl.store(out + to, (gate * first).to(kind), mask=there)
    tl.store(out + to + COLS, (attended * second).to(kind), mask=there)
    tl.store(out + to + 2 * COLS, (scaled * gate * third).to(kind), mask=there)


@jit
def gated_backward(
    given,
    x,
    u,
    weight,
    bias,
    of_x,
    of_u,
    of_weight,
    of_bias,
    count,
    seed,
    share,
    COLS: constexpr,
    ROWS: constexpr,
    DROPS: constexpr,
):
    """Programs go over rows in strides; each writes its own share of the weights' gradients."""
    cols = tl.arange(0, COLS)
    sum_weight, sum_bias = tl.zeros((COLS,), tl.float32), tl.zeros((COLS,), tl.float32)
    scales, shifts = tl.load(weight + cols)[None, :], tl.load(bias + cols)[None, :]
    for row in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        rows = row + tl.arange(0, ROWS)
        at, there = rows[:, None] * COLS + cols[None, :], rows[:, None] < count
        attended = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        gate = tl.load(u + at, mask=there, other=0.0).to(tl.float32)
        normed, inverse = _normed(attended, 1e-6, COLS)
        first, second, third = _kept(seed, at, share, DROPS)
        to = rows[:, None].to(tl.int64) * (3 * COLS) + cols[None, :]
        of_gate = tl.load(given + to, mask=there, other=0.0).to(tl.float32) * first
        of_own = tl.load(given + to + COLS, mask=there, other=0.0).to(tl.float32) * second
        of_both = tl.load(given + to + 2 * COLS, mask=there, other=0.0).to(tl.float32) * third
        of_gate += of_both * (normed * scales + shifts)
        of_scaled = of_both * gate
        sum_weight += tl.sum(of_scaled * normed, 0)
        sum_bias += tl.sum(of_scaled, 0)
        of_own += _through_norm(of_scaled, normed, inverse, scales, COLS)
        tl.store(of_x + at, of_own.to(of_x.dtype.element_ty), mask=there)
        tl.store(of_u + at, of_gate.to(of_u.dtype.element_ty), mask=there)
    own = tl.program_id(0) * COLS + cols
    tl.store(of_weight + own, sum_weight)
    tl.store(of_bias + own, sum_bias)


@jit
def dropout(x, out, count, seed, share, BLOCK: constexpr, DROPS: constexpr):
    """`x` with dropout, a call of Philox for each element; without `DROPS` a copy."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if DROPS:
        value = tl.where(tl.rand(seed, at) < share, value / share, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@jit
def dropout_masks(out, count, seed, share, BLOCK: constexpr):
    """Three masks of a byte per element, from one call of Philox for the three."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second, third, _ = tl.rand4x(seed, at)
    to, there = at.to(tl.int64), at < count
    tl.store(out + to, (first < share).to(tl.uint8), mask=there)
    tl.store(out + to + count, (second < share).to(tl.uint8), mask=there)
    tl.store(out + to + 2 * count, (third < share).to(tl.uint8), mask=there)


@jit
def concat_jagged(
    left, right, out, left_at, right_at, COLS: constexpr, ROWS: constexpr, SPLIT: constexpr = False
):
    """Per sequence its rows of `left`, then those of `right`; a program per block of rows. With
    `SPLIT` the other way: from `out` to both."""
    sample = tl.program_id(1)
    left_start, right_start = tl.load(left_at + sample), tl.load(right_at + sample)
    left_length = tl.load(left_at + sample + 1) - left_start
    length = left_length + tl.load(right_at + sample + 1) - right_start
    first = tl.program_id(0) * ROWS
    if first < length:
        rows, cols = first + tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
        of_left = (left_start + rows) * COLS + cols
        of_right = (right_start + rows - left_length) * COLS + cols
        to = (left_start + right_start + rows) * COLS + cols
        is_left = (rows < left_length) & (cols < COLS)
        is_right = (rows >= left_length) & (rows < length) & (cols < COLS)
        if SPLIT:
            value = tl.load(out + to, mask=is_left | is_right, other=0.0)
            tl.store(left + of_left, value, mask=is_left)
            tl.store(right + of_right, value, mask=is_right)
        else:
            value = tl.load(left + of_left, mask=is_left, other=0.0)
            other = tl.load(right + of_right, mask=is_right, other=0.0)
            tl.store(out + to, tl.where(is_left, value, other), mask=is_left | is_right)


@jit
def add_sorted_rows(x, order, starts, out, COLS: constexpr, ROWS: constexpr):
    """Of each row of `out` the sum of those rows of `x` that `order` lists between its `starts`."""
    begin, end = tl.load(starts + tl.program_id(0)), tl.load(starts + tl.program_id(0) + 1)
    cols, total = tl.arange(0, COLS), tl.zeros((COLS,), tl.float32)
    for place in range(begin, end, ROWS):
        places = place + tl.arange(0, ROWS)
        at = tl.load(order + places, mask=places < end, other=0)
        of_rows = at[:, None] * COLS + cols[None, :]
        total += tl.sum(tl.load(x + of_rows, mask=places[:, None] < end, other=0.0), 0)
    tl.store(out + tl.program_id(0) * COLS + cols, total.to(out.dtype.element_ty))


@jit
def add_positions(
    x,
    ages,
    by_place,
    by_age,
    place_of,
    age_of,
    out,
    offsets,
    COLS: constexpr,
    ROWS: constexpr,
    CONTEXT: constexpr,
    PLACES: constexpr,
    AGES: constexpr,
):
    """`x` and a row of `by_place` and of `by_age`, whose numbers are kept in `place_of age_of`.

    The row of an age is its root. The first `CONTEXT` positions of a sequence have no age."""
    sample, first = tl.program_id(1), tl.program_id(0) * ROWS
    start = tl.load(offsets + sample)
    length = (tl.load(offsets + sample + 1) - start).to(tl.int32)
    if first < length:
        rows, cols = first + tl.arange(0, ROWS), tl.arange(0, COLS)[None, :]
        there = rows < length
        from_ages = ages + start - (sample + 1) * CONTEXT + rows
        age = tl.load(from_ages, mask=there & (rows >= CONTEXT), other=0).to(tl.float32)
        bucket = tl.minimum(tl.sqrt(age).to(tl.int32), AGES - 1)
        place = tl.minimum(rows, PLACES - 1)
        tl.store(place_of + start + rows, place, mask=there)
        tl.store(age_of + start + rows, bucket, mask=there)
        at = (start + rows)[:, None] * COLS + cols
        total = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32)
        total += tl.load(by_place + place[:, None] * COLS + cols)
        total += tl.load(by_age + bucket[:, None] * COLS + cols)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=there[:, None])


@jit
def update_rows(table, state, rows, gradient, rate, COLS: constexpr):
    """Row-wise Adagrad on the `rows` of `table`, each of which occurs once."""
    place, cols = tl.program_id(0), tl.arange(0, COLS)
    row = tl.load(rows + place)
    given = tl.load(gradient + place.to(tl.int64) * COLS + cols)
    grown = tl.load(state + row) + tl.sum(given * given, 0) / COLS
    tl.store(state + row, grown)
    own = table + row * COLS + cols
    tl.store(own, tl.load(own) - rate * given / (tl.sqrt(grown) + 1e-8))
