# mypy: ignore-errors
"""The Triton kernel that executes operations for all runs of a sweep. Imported when a sweep needs it: imports triton.

One program of the kernel executes the operations of one plan for a few runs, from one evaluation to the next. The
current params stay in registers. Old params are not needed: a gradient in flight of a linear model is the slope of its
row, computed while the params of its version are the current ones, and only with an ``l2`` those params too.
"""

import triton
import triton.language as tl

FIELDS: tl.constexpr = tl.constexpr(4)
"""The integers of an operation: those of ``nowait.engines.simulator.gpu.operations``."""


@triton.jit
def slope(margin, target, model: tl.constexpr):
    """The derivative of the loss of a row with respect to its margin, as in ``nowait.problems.kernels``."""
    if model == 0:
        value = margin - target
    elif model == 1:
        value = -target / (1.0 + tl.exp(target * margin))
    elif model == 2:
        value = tl.where(margin > target, 1.0, 0.0) - tl.where(margin < target, 1.0, 0.0)
    else:
        value = tl.where(target * margin < 1.0, -target, 0.0)
    return value


@triton.jit
def load_operation(operations, index):
    """The row and entry of the gradient that is used, and those of the slope that is computed."""
    operation = operations + FIELDS * index
    return tl.load(operation), tl.load(operation + 1), tl.load(operation + 2), tl.load(operation + 3)


@triton.jit
def load_row(features, row, columns, width):
    """A row of the data as a matrix with one row; zeros if there is no row."""
    limit = tl.where(row >= 0, width, 0)
    return tl.load(features + row.to(tl.int64) * width + columns, mask=columns < limit, other=0.0)


@triton.jit(do_not_specialize=["entries", "batch"])
def execute(
    features,
    targets,
    operations,
    weights,
    begins,
    ends,
    blocks,
    factors,
    points,
    slopes,
    old_points,
    width,
    entries,
    batch,
    decay,
    model: tl.constexpr,
    penalised: tl.constexpr,
    num_runs: tl.constexpr,
    block_width: tl.constexpr,
):
    """Execute the operations from ``begins`` to ``ends`` for the runs of one block.

    ``blocks`` has the plan, the first run and the end of the runs of each block. ``width`` is the number of columns of
    ``features`` and ``points``, a multiple of 16; the columns after the last feature are zero. ``decay`` points to
    the regulariser times the batch, in float64. Everything that the next operation reads is loaded before the present
    one is executed: memory is slower than the arithmetic.
    """
    block = blocks + 3 * tl.program_id(0)
    plan, end_run = tl.load(block), tl.load(block + 2)
    runs = tl.load(block + 1).to(tl.int64) + tl.arange(0, num_runs)[:, None]
    columns = tl.arange(0, block_width)[None, :]
    present, inside = runs < end_run, columns < width
    x = tl.load(points + runs * width + columns, mask=present & inside, other=0.0)
    factor = tl.load(factors + runs, mask=present, other=0.0)
    shrinkage = tl.load(decay).to(x.dtype)
    pending = slopes + runs * entries
    old = old_points + runs * (entries // batch) * width + columns

    begin, end = tl.load(begins + plan), tl.load(ends + plan)
    use_row, use_entry, new_row, new_entry = load_operation(operations, begin)
    next_use_row, next_use_entry, next_new_row, next_new_entry = load_operation(operations, begin + 1)
    gamma = (tl.load(weights + begin) * factor).to(x.dtype)
    next_weight = tl.load(weights + begin + 1)
    used = load_row(features, use_row, columns, width)
    new = load_row(features, new_row, columns, width)
    target = tl.load(targets + new_row, mask=new_row >= 0, other=0.0)
    scale = tl.load(pending + use_entry, mask=runs < tl.where(use_row >= 0, end_run, 0), other=0.0)
    if penalised:
        limit = tl.where((use_row >= 0) & (use_entry % batch == 0), end_run, 0)
        old_x = tl.load(old + (use_entry // batch).to(tl.int64) * width, mask=inside & (runs < limit), other=0.0)

    for index in range(begin, end):
        # Load what the next operation needs, and the numbers of the one after it.
        later_use_row, later_use_entry, later_new_row, later_new_entry = load_operation(operations, index + 2)
        later_weight = tl.load(weights + index + 2)
        next_used = load_row(features, next_use_row, columns, width)
        next_new = load_row(features, next_new_row, columns, width)
        next_target = tl.load(targets + next_new_row, mask=next_new_row >= 0, other=0.0)
        limit = tl.where(next_use_row >= 0, end_run, 0)
        next_scale = tl.load(pending + next_use_entry, mask=runs < limit, other=0.0)
        if penalised:
            limit = tl.where((next_use_row >= 0) & (next_use_entry % batch == 0), end_run, 0)
            next_old_x = tl.load(
                old + (next_use_entry // batch).to(tl.int64) * width, mask=inside & (runs < limit), other=0.0
            )

        # Make the step, and compute the slope of the new row.
        x -= (gamma * scale) * used
        if penalised:
            x -= (gamma * shrinkage) * old_x
        margin = tl.sum(x * new, axis=1, keep_dims=True)
        made = slope(margin, target, model).to(x.dtype)
        tl.store(pending + new_entry, made, mask=runs < tl.where(new_row >= 0, end_run, 0))
        if penalised:
            limit = tl.where((new_row >= 0) & (new_entry % batch == 0), end_run, 0)
            tl.store(old + (new_entry // batch).to(tl.int64) * width, x, mask=inside & (runs < limit))
        tl.debug_barrier()  # other threads of this block read what was stored

        # What the next operation uses may have been stored after its load.
        just_made = (new_row >= 0) & (next_use_row >= 0) & (next_use_entry == new_entry)
        scale = tl.where(just_made, made, next_scale)
        if penalised:
            old_x = tl.where(just_made & (new_entry % batch == 0), x, next_old_x)
        gamma = (next_weight * factor).to(x.dtype)
        used, new, target = next_used, next_new, next_target
        new_row, new_entry = next_new_row, next_new_entry
        next_use_row, next_use_entry = later_use_row, later_use_entry
        next_new_row, next_new_entry, next_weight = later_new_row, later_new_entry, later_weight

    tl.store(points + runs * width + columns, x, mask=present & inside)
