"""Implementations of attention. They differ in speed and in what they serve, never in meaning.

Each is a module with these functions, where `problem` is a `sharpmax._attention.problem.Problem`:

    unsupported(problem, policy) -> str | None
        Why it cannot serve, or None. Has no side effect. `policy` is None for `measure` alone.
    measure(problem) -> RowStatistics
        Statistics of the untempered rows, differentiable in query, key, mask and sink.
    attend(problem, beta, log_mass=True, maximum=None) -> (output, log-mass or None)
        softmax(beta e) V and log(sum exp(beta (e - maximum))), differentiable in query, key,
        value, mask, sink and beta, a tensor [batch, heads, queries]. `maximum` is the largest logit
        of the row if that is known, here or among other keys of the row; None is 0. It can save
        work, and the output does not depend on it.

`sharpmax._attention.temperature` puts the policy between the two, so a policy that is written in
Python works with all of them, gradients included. Five more functions are optional:

    temper(problem, beta) -> (entropy, variance)
        Of softmax(beta e), the entropy (differentiable) and the variance of e. Policies with
        `needs_logits` need it.
    count(problem) -> Tensor | None
        How many keys each row sees, for policies that read no more; None if `measure` costs less.
    fused(problem, form, table, detach_temperature) -> (output, statistics)
        The composition in one pass, for policies with a `kernel_form`. `table` holds its columns,
        [heads or 1, columns].
    held(problem) -> object with `measure`, `temper` and `attend`, or None
        The same functions for this one problem, which share what they have in common, such as the
        logits of a few rows.
    prepare() -> str | None
        Build what is missing before the first use; why that failed, or None.
"""

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_when_compiled(function: _Function) -> _Function:
    """Do as `torch.compiler.assume_constant_result`, without importing the compiler for a second.

    PyTorch sets this attribute and nothing more, from 2.6 to 2.13.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
