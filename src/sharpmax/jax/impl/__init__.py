"""Implementations of attention for JAX. They differ in speed, never in meaning.

Each is a module with these functions, where `problem` is a `sharpmax.jax._problem.Problem`. They
know neither policies nor sinks nor other devices: `sharpmax.jax._temperature` adds those, once for
all of them. Rows have the axes [batch, heads, queries].

    unsupported(problem, policy) -> str | None
        Why it cannot serve, or None. Has no side effect. `policy` is None for `measure` alone.
    measure(problem) -> RowStatistics
        Statistics of the untempered rows, differentiable in query, key and bias.
    attend(problem, beta, maximum=None) -> (output, maximum, mass)
        softmax(beta e) V as [batch, queries, heads, width], and the mass, sum exp(beta (e -
        maximum)), both differentiable in query, key, value, bias and beta. `maximum` is that of the
        statistics; if it is known, it saves work. Derivatives take it as a constant.
    temper(problem, beta, maximum) -> (mass, moment, second)
        Sums of exp(beta d), d exp(beta d) and d^2 exp(beta d), where d = e - maximum, for finite
        beta. The first two are differentiable in query, key and bias. Policies with `needs_logits`
        need it.

Two functions are optional. `prepare() -> str | None` builds what is missing before the first use,
and says why that failed. `fused(problem, form, table, measured) -> (output, maximum, statistics,
beta, log_mass)` attends in one pass at the beta of a closed form, with the sink, if there is one,
among the keys; without `measured`, the statistics are None. It returns None if there is nothing to
attend to.
"""
