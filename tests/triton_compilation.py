"""Compile the Triton kernels ahead of time, without a device, and read what came out.

    python tests/triton_compilation.py [--architecture sm_90] [--kernel attend] [--width 128]

prints registers, spills, shared memory and matrix instructions of every kernel, architecture and
width of the table, and ends with 1 if one spills, does not fit, or uses no matrix instruction.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sharpmax._attention.impl.triton.launch import TILES, Launch, Settings, function, launch

SHARED = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""The largest allocation of one program, in bytes; that of sm_86 and sm_89 for sm_80."""
INSTRUCTIONS = {
    "sm_80": r"mma\.sync",
    "sm_90": r"wgmma",
    "sm_100": r"tcgen05\.mma",
    "gfx942": r"v_mfma",
}
WIDTHS = (64, 128, 256)
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


class Compiled(NamedTuple):
    """What the compiler made of one kernel."""

    registers: int
    spills: int
    shared: int
    matrix_instructions: int

    def faults(self, architecture: str) -> list[str]:
        found = []
        if self.spills:
            found.append(f"{self.spills} bytes or registers spilled")
        if self.shared > SHARED[architecture]:
            found.append(f"{self.shared} bytes of shared memory")
        if not self.matrix_instructions:
            found.append("no matrix instruction")
        return found


def laid_out(kernel: str, architecture: str, width: int) -> Launch:
    """The launch of causal grouped attention in bfloat16, on tensors without memory."""

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rows = empty(1, 8, 4096, dtype=torch.float32)
    query, key, value = empty(1, 8, 4096, width), *(empty(1, 2, 4096, width) for _ in range(2))
    settings = Settings(0.125, 0.0, -1, 0, 0)
    given: dict[str, Any] = {"query": query, "key": key, "mask": None, "beta": rows}
    options: dict[str, Any] = {"architecture": architecture}
    if kernel == "measure":
        names = ("maximum", "mass", "moment", "square", "count", "ties")
        given |= {"scores": rows} | dict.fromkeys(names, rows)
        given["count"] = empty(1, 8, 4096, dtype=torch.int32)
        return launch(
            kernel, given, settings, splits=1, TEMPERED=False, TIED=True, SCORES="", **options
        )
    given["value"] = value
    if kernel == "attend":
        given |= {"scores": rows, "known": rows, "output": query, "maximum": rows, "relative": rows}
        given["odd"] = empty(4096, dtype=torch.int32)
        return launch(
            kernel,
            given,
            settings,
            splits=1,
            negligible=-26.0,
            KNOWN=True,
            SCORES="",
            CAREFUL=False,
            **options,
        )
    given |= {"gradient": query} | dict.fromkeys(("maximum", "one", "two", "three"), rows)
    if kernel == "by_query":
        given |= {"of_query": query, "of_beta": rows, "of_mask": rows}
        return launch(kernel, given, settings, VALUES=True, BIAS=False, **options)
    given |= {"of_key": key, "of_value": value}
    return launch(kernel, given, settings, over_keys=True, VALUES=True, **options)


def compiled(kernel: str, architecture: str, width: int) -> Compiled:
    """Compile one entry of the table, as a launch on that device would."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    made = laid_out(kernel, architecture, width)
    target = (
        GPUTarget("hip", architecture, 64)
        if architecture.startswith("gfx")
        else GPUTarget("cuda", int(architecture[3:]), 32)
    )
    code = function(kernel)
    signature, constants, attributes = {}, dict(made.constants), {}
    for place, name in enumerate(code.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        argument = made.arguments[name]
        if isinstance(argument, torch.Tensor):
            signature[name] = _TYPES[argument.dtype]
            attributes[place,] = [["tt.divisibility", 16]]
        elif isinstance(argument, float):
            signature[name] = "fp32"
        elif argument == 1:  # a launch compiles it in
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if argument % 16 == 0:
                attributes[place,] = [["tt.divisibility", 16]]
    result = triton.compile(
        ASTSource(code, signature, constants, attributes),
        target=target,
        options={"num_warps": made.tile.warps, "num_stages": made.tile.stages},
    )
    text = result.asm["amdgcn" if target.backend == "hip" else "ptx"]
    found = len(re.findall(INSTRUCTIONS[architecture], text))
    if target.backend == "hip":
        registers = _number(r"\.vgpr_count:\s*(\d+)", text)
        spills = _number(r"\.vgpr_spill_count:\s*(\d+)", text)
    else:
        registers, spills = _assembled(text, triton)
    return Compiled(registers, spills, result.metadata.shared, found)


def _assembled(ptx: str, triton: Any) -> tuple[int, int]:
    """Registers per thread and bytes spilled, as NVIDIA's assembler tells them."""
    target = re.search(r"\.target\s+(\w+)", ptx)
    assert target is not None
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    tool = "ptxas-blackwell"  # the newer of the two, which serves every architecture
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        done = subprocess.run(
            [folder / tool, "-v", f"--gpu-name={target[1]}", source, "-o", f"{place}/kernel"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr + done.stdout
    said = done.stderr + done.stdout
    return _number(r"Used (\d+) registers", said), _number(r"(\d+) bytes spill stores", said)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in what the compiler wrote"
    return int(match[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", choices=list(SHARED), action="append")
    parser.add_argument("--kernel", choices=sorted({k for _, k in TILES}), action="append")
    parser.add_argument("--width", choices=WIDTHS, type=int, action="append")
    chosen = parser.parse_args()
    failed = False
    print("| architecture | kernel | width | registers | spilled | shared | matrix instructions |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for architecture, kernel in TILES:
        if kernel not in (chosen.kernel or [kernel]):
            continue
        if architecture not in (chosen.architecture or [architecture]):
            continue
        for width in chosen.width or WIDTHS:
            result = compiled(kernel, architecture, width)
            faults = result.faults(architecture)
            failed = failed or bool(faults)
            numbers = " | ".join(str(number) for number in result)
            print(f"| {architecture} | {kernel} | {width} | {numbers} |", *faults, flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
