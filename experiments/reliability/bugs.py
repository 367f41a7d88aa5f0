"""Small bugs, each planted by one replacement of text, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BUGS", "Bug"]

Room = Literal["mathematics", "kernels", "attention", "policies", "models", "files"]

_CAMPAIGN = "tests/attention/test_campaign.py"
_IMPL = "src/sharpmax/_attention/impl"
_KERNELS = "src/sharpmax/kernels"
_MODELS = "src/sharpmax/models"


@dataclass(frozen=True)
class Bug:
    """A bug to plant.

    Attributes:
        name: What is wrong with it.
        room: The part of the library.
        file: The file, from the root of the repository.
        before: Text that the file has exactly once.
        after: Text in its place.
        tests: Files of tests that have to fail.
    """

    name: str
    room: Room
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


BUGS = (
    Bug(
        "merged blocks forget that the maximum moved",
        "mathematics",
        "src/sharpmax/_statistics.py",
        "factor * (block.moment + gap * block.mass)",
        "factor * block.moment",
        ("tests/test_statistics.py",),
    ),
    Bug(
        "finite logits keep weight beside infinite ones",
        "mathematics",
        "src/sharpmax/_statistics.py",
        "visible & ((maximum != _INFINITY) | (logits == _INFINITY))",
        "visible & (maximum == maximum)",
        ("tests/test_statistics.py",),
    ),
    Bug(
        "the difference of huge logits overflows",
        "mathematics",
        "src/sharpmax/_statistics.py",
        "return 2.0 * xp.clip(halved, -0.5 * xp.largest_root(halved), None)",
        "return 2.0 * halved",
        ("tests/test_statistics.py", "tests/attention/test_edges.py"),
    ),
    Bug(
        "the bound of the spread misses a factor of two",
        "mathematics",
        "src/sharpmax/theory.py",
        "    bound = 2.0\n",
        "    bound = 1.0\n",
        ("tests/test_theory.py",),
    ),
    Bug(
        "the critical length is one too small",
        "mathematics",
        "src/sharpmax/theory.py",
        "_floor_of_exp_over(exponent, Fraction(epsilon)) + 1",
        "_floor_of_exp_over(exponent, Fraction(epsilon))",
        ("tests/test_theory.py",),
    ),
    Bug(
        "an interval is one-sided",
        "mathematics",
        "src/sharpmax/_resampling.py",
        "[(1 - level) / 2, (1 + level) / 2]",
        "[1 - level, level]",
        ("tests/test_resampling.py",),
    ),
    Bug(
        "a row whose maximum rises keeps its old moment",
        "kernels",
        f"{_KERNELS}/panel.h",
        "old_moment = decay * (old_moment + shift * old_mass);",
        "old_moment = decay * old_moment;",
        (_CAMPAIGN,),
    ),
    Bug(
        "a window is one key short",
        "kernels",
        f"{_KERNELS}/problem.h",
        "std::max<int64_t>(0, position - left)",
        "std::max<int64_t>(0, position - left + 1)",
        (_CAMPAIGN,),
    ),
    Bug(
        "in double precision small weights are dropped as in single",
        "kernels",
        f"{_KERNELS}/panel.h",
        "(sizeof(T) == 8 ? 38. : 18.)",
        "18.",
        (_CAMPAIGN,),
    ),
    Bug(
        "the entropy target ignores how far the sink is",
        "kernels",
        f"{_KERNELS}/target.h",
        "for (int k = 0; k < 4; ++k, term *= distance) sums[k] += term;",
        "for (int k = 0; k < 4; ++k) sums[k] += term;",
        (_CAMPAIGN,),
    ),
    Bug(
        "chunks of a decoding step forget that the maximum moved",
        "kernels",
        f"{_KERNELS}/decode.h",
        "scale_there * (chunk.moment + there * chunk.mass)",
        "scale_there * chunk.moment",
        (_CAMPAIGN,),
    ),
    Bug(
        "a sink that ties with the maximum gets no share",
        "kernels",
        f"{_KERNELS}/forward.h",
        "if (sink == maximum) return std::log(total + 1);",
        "if (sink == maximum) return std::log(total);",
        (_CAMPAIGN, "tests/attention/test_edges.py"),
    ),
    Bug(
        "the sink pulls beta the wrong way",
        "kernels",
        f"{_KERNELS}/backward.h",
        "slope -= of_sink * inner * distance;",
        "slope += of_sink * inner * distance;",
        (_CAMPAIGN,),
    ),
    Bug(
        "the gradient through the entropy misses a term",
        "kernels",
        f"{_KERNELS}/backward.h",
        "(V::load(terms.c0 + at) * distance + V::load(terms.a0 + at))",
        "V::load(terms.a0 + at)",
        (_CAMPAIGN,),
    ),
    Bug(
        "the gradient of an entropy target misses beta",
        "attention",
        "src/sharpmax/_attention/temperature.py",
        "slope = -by_beta * beta * inverse",
        "slope = -by_beta * inverse",
        (_CAMPAIGN,),
    ),
    Bug(
        "a block of queries begins at position 0",
        "attention",
        "src/sharpmax/_attention/problem.py",
        "offset=self.offset + start",
        "offset=self.offset",
        ("tests/attention/test_agreement.py", "tests/attention/test_laws.py", _CAMPAIGN),
    ),
    Bug(
        "the kernels count a sink that stands apart",
        "attention",
        f"{_IMPL}/cpu.py",
        "        problem.offset,\n        problem.sink_counted,\n",
        "        problem.offset,\n        True,\n",
        (_CAMPAIGN,),
    ),
    Bug(
        "the table of a policy outlives the number of heads",
        "attention",
        "src/sharpmax/_attention/temperature.py",
        "known[0]() is policy and known[2] in (1, heads)",
        "known[0]() is policy",
        ("tests/attention/test_arguments.py", "tests/attention/test_operators.py"),
    ),
    Bug(
        "a strength of 0 cannot grow",
        "policies",
        "src/sharpmax/policies/_forms.py",
        "xp.where(logarithm < 0, 0.0, logarithm)",
        "xp.where(logarithm <= 0, 0.0, logarithm)",
        ("tests/policies", "tests/nn/test_learned_policy.py"),
    ),
    Bug(
        "the guard of the paper counts mass, not keys",
        "policies",
        "src/sharpmax/policies/_forms.py",
        "xp.asarray(guard, like=entropy) * statistics.count",
        "xp.asarray(guard, like=entropy) * statistics.mass",
        ("tests/policies",),
    ),
    Bug(
        "a fitted curve grows half as fast beyond its data",
        "policies",
        "src/sharpmax/policies/_monotone.py",
        "columns += [knots[..., -1], 1.0, math.inf]",
        "columns += [knots[..., -1], 0.5, math.inf]",
        ("tests/policies",),
    ),
    Bug(
        "beta passes its limit",
        "policies",
        "src/sharpmax/policies/_entropy_target.py",
        "xp.clip(beta + excess / xp.stop_gradient(slope), 1.0, limit)",
        "xp.clip(beta + excess / xp.stop_gradient(slope), 1.0, None)",
        ("tests/policies", _CAMPAIGN),
    ),
    Bug(
        "an array of parameters is shared with the caller",
        "policies",
        "src/sharpmax/policies/_parameter.py",
        "array.copy()",
        "array",
        ("tests/policies", "tests/attention/test_edges.py"),
    ),
    Bug(
        "the first of two choices of heads counts",
        "models",
        f"{_MODELS}/_sharpen.py",
        "return found[-1] if found else ()",
        "return found[0] if found else ()",
        ("tests/models/test_sharpen.py", "tests/models/test_sharpen_plan.py"),
    ),
    Bug(
        "a head that harms is kept",
        "models",
        f"{_MODELS}/_calibration/select.py",
        "if good[head] > 0]",
        "if good[head] < 0]",
        ("tests/models/calibration",),
    ),
    Bug(
        "the doubt about the loss on text is halved",
        "models",
        f"{_MODELS}/_calibration/select.py",
        "bounds = (gain, gain - 2 * error, -fell, 2 * doubt - fell)",
        "bounds = (gain, gain - 2 * error, -fell, doubt - fell)",
        ("tests/models/calibration",),
    ),
    Bug(
        "an answer is read without the last token of its prompt",
        "models",
        f"{_MODELS}/_answers.py",
        "min(common_length(self._read, tokens), len(question.ids) - 1)",
        "min(common_length(self._read, tokens), len(question.ids))",
        ("tests/models/test_answers.py",),
    ),
    Bug(
        "the gain of one rank is that of all",
        "models",
        f"{_MODELS}/_rule.py",
        "(None if x is None else x[start:stop] for x in (self.chosen, self.gain))",
        "(None if x is None else x[: stop - start] for x in (self.chosen, self.gain))",
        ("tests/models/test_rule.py", "tests/models/test_handle.py"),
    ),
    Bug(
        "an interrupted write leaves its temporary file",
        "files",
        "src/sharpmax/_files.py",
        "        temporary.unlink(missing_ok=True)\n        raise",
        "        raise",
        ("tests/test_files.py",),
    ),
    Bug(
        "a setting that an earlier run did not have is accepted",
        "files",
        "src/sharpmax/_files.py",
        "if before.get(name) != value:",
        "if name in before and before[name] != value:",
        ("tests/test_files.py", "tests/experiments/common"),
    ),
)
