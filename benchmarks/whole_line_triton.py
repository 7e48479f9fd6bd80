"""The kernel of whole_line.py: groups of programs take lines of pictures through the inner level.

A member of a group has some heads, and some columns of each dense layer; between the parts of a
step the members meet. m pictures of a group, n columns, k inputs at a time, e width of a head, r
rows of a choice, i inputs, v values.
"""

import triton
import triton.language as tl


@triton.jit
def _meet(counter, target, MEMBERS: tl.constexpr):
    """Wait until all members of the group have come here; what they wrote can then be read."""
    tl.debug_barrier()
    if MEMBERS > 1:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
            pass
        tl.debug_barrier()


@triton.jit
def _norm(x_at, inside, WIDTH: tl.constexpr, M: tl.constexpr, K: tl.constexpr, EPS: tl.constexpr):
    """Mean and 1 / standard deviation of each row."""
    k = tl.arange(0, K)
    first = tl.zeros((M, K), tl.float32)
    for start in range(0, WIDTH, K):
        at = x_at[:, None] + start + k[None, :]
        first += tl.load(at, mask=inside[:, None], other=0.0, cache_modifier=".cg").to(tl.float32)
    mean = tl.sum(first, 1) / WIDTH
    second = tl.zeros((M, K), tl.float32)
    for start in range(0, WIDTH, K):
        at = x_at[:, None] + start + k[None, :]
        part = tl.load(at, mask=inside[:, None], other=0.0, cache_modifier=".cg").to(tl.float32)
        part -= mean[:, None]
        second += part * part
    return mean, tl.rsqrt(tl.sum(second, 1) / WIDTH + EPS)


@triton.jit
def _dense(
    x_at,
    inside,
    weight,
    bias,
    column,
    known,
    mean,
    scale,
    INPUTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Some columns of a dense layer of (m, i), the norm before it if asked."""
    k = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, INPUTS, K):
        at = x_at[:, None] + start + k[None, :]
        part = tl.load(at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
        if NORMED:
            part = ((part.to(tl.float32) - mean[:, None]) * scale[:, None]).to(part.dtype)
        at = weight + column[None, :] * INPUTS + start + k[:, None]
        weights = tl.load(at, mask=known[None, :], other=0.0)
        total = tl.dot(part, weights, total, input_precision="ieee")
    return total + tl.load(bias + column, mask=known, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _dense_of_head(
    x_at,
    inside,
    weight,
    bias,
    column,
    known,
    mean,
    scale,
    INPUTS: tl.constexpr,
    M: tl.constexpr,
    E: tl.constexpr,
    K: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Query, key and value (m, e) of a head, the norm before them: the inputs are read once."""
    k = tl.arange(0, K)
    q_total = tl.zeros((M, E), tl.float32)
    k_total = tl.zeros((M, E), tl.float32)
    v_total = tl.zeros((M, E), tl.float32)
    for start in range(0, INPUTS, K):
        at = x_at[:, None] + start + k[None, :]
        part = tl.load(at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
        part = ((part.to(tl.float32) - mean[:, None]) * scale[:, None]).to(part.dtype)
        at = weight + column[None, :] * INPUTS + start + k[:, None]
        weights = tl.load(at, mask=known[None, :], other=0.0)
        q_total = tl.dot(part, weights, q_total, input_precision="ieee")
        weights = tl.load(at + SIZE * INPUTS, mask=known[None, :], other=0.0)
        k_total = tl.dot(part, weights, k_total, input_precision="ieee")
        weights = tl.load(at + 2 * SIZE * INPUTS, mask=known[None, :], other=0.0)
        v_total = tl.dot(part, weights, v_total, input_precision="ieee")
    at = bias + column
    q_total += tl.load(at, mask=known, other=0.0).to(tl.float32)[None, :]
    k_total += tl.load(at + SIZE, mask=known, other=0.0).to(tl.float32)[None, :]
    v_total += tl.load(at + 2 * SIZE, mask=known, other=0.0).to(tl.float32)[None, :]
    return q_total, k_total, v_total


@triton.jit
def _attend(
    q,
    k,
    v,
    keys_at,
    values_at,
    inside,
    j,
    k_step,
    SIZE: tl.constexpr,
    E: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Attention (m, e) of one step to itself and to the j steps before it."""
    e = tl.arange(0, E)
    top = tl.sum(k.to(tl.float32) * q, 1)
    share = top * 0 + 1.0
    mixed = v.to(tl.float32)
    for start in range(0, j, STEPS):
        step = start + tl.arange(0, STEPS)
        at = step[None, :, None] * k_step + e[None, None, :]
        mask = inside[:, None, None] & (step < j)[None, :, None] & (e < SIZE)[None, None, :]
        some_keys = tl.load(keys_at[:, None, None] + at, mask=mask, other=0.0).to(tl.float32)
        some_values = tl.load(values_at[:, None, None] + at, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(some_keys * q[:, None, :], 2)
        scores = tl.where((step < j)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(top - higher)
        mixed = mixed * shrink[:, None] + tl.sum(weights[:, :, None] * some_values, 1)
        share = share * shrink + tl.sum(weights, 1)
        top = higher
    return mixed / share[:, None]


@triton.jit
def lines(
    x,
    seen,
    hidden,
    keys,
    values,
    logits,
    line,
    base,
    noise,
    table,
    broken,
    counters,
    qkv_weight,
    qkv_bias,
    out_weight,
    out_bias,
    in_weight,
    in_bias,
    mlp_weight,
    mlp_bias,
    logits_weight,
    logits_bias,
    rows,
    first_step,
    last_step,
    first_layer,
    last_layer,
    LENGTH: tl.constexpr,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    HEADS: tl.constexpr,
    VALUES: tl.constexpr,
    EPS: tl.constexpr,
    PART: tl.constexpr,
    MEMBERS: tl.constexpr,
    MEETING: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
    R: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Take lines through some steps; all parts of a step, or one of them alone."""
    SIZE: tl.constexpr = WIDTH // HEADS
    ALL: tl.constexpr = PART == -1
    group = tl.program_id(0) // MEMBERS
    member = tl.program_id(0) % MEMBERS
    counter = counters + group * 32
    turn = 0
    row = (group * M + tl.arange(0, M)).to(tl.int64)
    inside = row < rows
    x_at = x + row * WIDTH
    e = tl.arange(0, E)
    n = tl.arange(0, N)
    for j in range(first_step, last_step):
        for layer in range(first_layer, last_layer):
            if ALL or PART == 0:
                mean, scale = _norm(x_at, inside, WIDTH, M, K, EPS)
                weight = qkv_weight + layer * 3 * WIDTH * WIDTH
                bias = qkv_bias + layer * 3 * WIDTH
                cached = (layer * rows + row) * LENGTH * WIDTH
                for head in range(member, HEADS, MEMBERS):
                    column = head * 3 * SIZE + e
                    of_head = e < SIZE
                    q, k, v = _dense_of_head(
                        x_at, inside, weight, bias, column, of_head, mean, scale,
                        WIDTH, M, E, K, SIZE,
                    )  # fmt: skip
                    k, v = k.to(keys.dtype.element_ty), v.to(keys.dtype.element_ty)
                    q = q.to(keys.dtype.element_ty).to(tl.float32)
                    at = cached + head * SIZE
                    mixed = _attend(
                        q, k, v, keys + at, values + at, inside, j, WIDTH, SIZE, E, STEPS
                    )
                    mask = inside[:, None] & of_head[None, :]
                    own = (at + j * WIDTH)[:, None] + e[None, :]
                    tl.store(keys + own, k, mask=mask)
                    tl.store(values + own, v, mask=mask)
                    at_seen = (row * WIDTH + head * SIZE)[:, None] + e[None, :]
                    tl.store(seen + at_seen, mixed, mask=mask)
                if MEETING:
                    turn += 1
                    _meet(counter, turn * MEMBERS, MEMBERS)
            if ALL or PART == 1:
                for start in range(member * N, WIDTH, MEMBERS * N):
                    column = start + n
                    known = column < WIDTH
                    total = _dense(
                        seen + row * WIDTH, inside, out_weight + layer * WIDTH * WIDTH,
                        out_bias + layer * WIDTH, column, known, 0.0, 0.0,
                        WIDTH, M, N, K, False,
                    )  # fmt: skip
                    mask = inside[:, None] & known[None, :]
                    at = x_at[:, None] + column[None, :]
                    total += tl.load(at, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
                    tl.store(at, total, mask=mask)
                if MEETING:
                    turn += 1
                    _meet(counter, turn * MEMBERS, MEMBERS)
            if ALL or PART == 2:
                mean, scale = _norm(x_at, inside, WIDTH, M, K, EPS)
                for start in range(member * N, HIDDEN, MEMBERS * N):
                    column = start + n
                    known = column < HIDDEN
                    total = _dense(
                        x_at, inside, in_weight + layer * HIDDEN * WIDTH,
                        in_bias + layer * HIDDEN, column, known, mean, scale,
                        WIDTH, M, N, K, True,
                    )  # fmt: skip
                    total *= tl.sigmoid(total)
                    at = (row * HIDDEN)[:, None] + column[None, :]
                    tl.store(hidden + at, total, mask=inside[:, None] & known[None, :])
                if MEETING:
                    turn += 1
                    _meet(counter, turn * MEMBERS, MEMBERS)
            if ALL or PART == 3:
                for start in range(member * N, WIDTH, MEMBERS * N):
                    column = start + n
                    known = column < WIDTH
                    total = _dense(
                        hidden + row * HIDDEN, inside, mlp_weight + layer * WIDTH * HIDDEN,
                        mlp_bias + layer * WIDTH, column, known, 0.0, 0.0,
                        HIDDEN, M, N, K, False,
                    )  # fmt: skip
                    mask = inside[:, None] & known[None, :]
                    at = x_at[:, None] + column[None, :]
                    total += tl.load(at, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
                    tl.store(at, total, mask=mask)
                if MEETING:
                    turn += 1
                    _meet(counter, turn * MEMBERS, MEMBERS)
        if ALL or PART == 4:
            mean, scale = _norm(x_at, inside, WIDTH, M, K, EPS)
            for start in range(member * N, VALUES, MEMBERS * N):
                column = start + n
                known = column < VALUES
                total = _dense(
                    x_at, inside, logits_weight, logits_bias, column, known, mean, scale,
                    WIDTH, M, N, K, True,
                )  # fmt: skip
                at = (row * VALUES)[:, None] + column[None, :]
                tl.store(logits + at, total, mask=inside[:, None] & known[None, :])
            if MEETING:
                turn += 1
                _meet(counter, turn * MEMBERS, MEMBERS)
        if ALL or PART == 5:
            r = tl.arange(0, R) * MEMBERS + member
            chosen = (group * M + r).to(tl.int64)
            real = (r < M) & (chosen < rows)
            value = _choose(
                logits, line, noise, broken, chosen, real, j, LENGTH, VALUES, V,
            )  # fmt: skip
            following = tl.minimum(j + 1, LENGTH - 1)
            for start in range(0, WIDTH, K):
                d = start + tl.arange(0, K)
                mask = real[:, None] & (d < WIDTH)[None, :]
                at = (value * WIDTH)[:, None] + d[None, :]
                new = tl.load(table + at, mask=mask, other=0.0).to(tl.float32)
                at = ((chosen * LENGTH + following) * WIDTH)[:, None] + d[None, :]
                new += tl.load(base + at, mask=mask, other=0.0).to(tl.float32)
                tl.store(x + (chosen * WIDTH)[:, None] + d[None, :], new, mask=mask)
            if MEETING:
                turn += 1
                _meet(counter, turn * MEMBERS, MEMBERS)


@triton.jit
def _choose(
    logits,
    line,
    noise,
    broken,
    row,
    real,
    j,
    LENGTH: tl.constexpr,
    VALUES: tl.constexpr,
    V: tl.constexpr,
):
    """The values (r,) of place j of some rows, which are written where they are missing."""
    v = tl.arange(0, V)
    mask = real[:, None] & (v < VALUES)[None, :]
    at = (row * VALUES)[:, None] + v[None, :]
    scores = tl.load(logits + at, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float64)
    strange = tl.max(tl.max((tl.abs(scores) < float("inf")).to(tl.int32) ^ 1, 1), 0)
    tl.store(broken, 1, mask=strange > 0)
    at = ((row * LENGTH + j) * VALUES)[:, None] + v[None, :]
    scores += tl.load(noise + at, mask=mask, other=0.0)
    scores = tl.where((v < VALUES)[None, :], scores, float("-inf"))
    drawn = tl.minimum(tl.argmax(scores, 1), VALUES - 1).to(tl.int64)
    known = tl.load(line + row * LENGTH + j, mask=real, other=0)
    value = tl.where(known < 0, drawn, known)
    tl.store(line + row * LENGTH + j, value, mask=real)
    return value
