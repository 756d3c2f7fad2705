"""Files, functions, classes and signatures stay small enough to hold in one head."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("atom_lite", "kernels", "benchmarks")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_KERNEL_LINES = 120
MAX_CLASS_LINES = 250
MAX_PARAMETERS = 8

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> list[Path]:
    return sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def length(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def code_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring: explaining more must not cost anything."""
    first = function.body[0]
    explained = ast.get_docstring(function, clean=False) is not None
    return length(function) - (length(first) if explained else 0)


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A function with a Triton decorator."""
    return any("triton" in ast.unparse(decorator) for decorator in function.decorator_list)


def parameter_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters that a caller passes; `self` and `cls` are none."""
    arguments = function.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    own = 1 if names[:1] in (["self"], ["cls"]) else 0
    return len(names) + len(arguments.kwonlyargs) - own


def violations(source: str, *, in_kernels: bool = False) -> Iterator[str]:
    """Everything in `source` that is over its limit."""
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"1: file of {lines} lines (limit {MAX_FILE_LINES})"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and length(node) > MAX_CLASS_LINES:
            yield f"{node.lineno}: class {node.name} of {length(node)} lines"
        if not isinstance(node, FUNCTIONS):
            continue
        kernel = in_kernels and is_kernel(node)
        limit = MAX_KERNEL_LINES if kernel else MAX_FUNCTION_LINES
        if code_length(node) > limit:
            yield f"{node.lineno}: {node.name} of {code_length(node)} lines (limit {limit})"
        # a kernel takes one parameter for each pointer and stride, and so do its wrappers
        if not in_kernels and parameter_count(node) > MAX_PARAMETERS:
            yield f"{node.lineno}: {node.name} with {parameter_count(node)} parameters"


def test_there_are_modules_to_check() -> None:
    assert len(modules()) > 30


def test_every_module_keeps_to_the_limits() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{violation}"
        for path in modules()
        for violation in violations(
            path.read_text(encoding="utf-8"), in_kernels=path.is_relative_to(ROOT / "kernels")
        )
    ]
    assert not found, "\n".join(found)


def function_of(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("source", "in_kernels", "count"),
    [
        (function_of(40), False, 0),
        (function_of(41), False, 1),
        ("@triton.jit\n" + function_of(120), True, 0),
        ("@triton.jit\n" + function_of(121), True, 1),
        (function_of(41), True, 1),
        ("class C:\n" + "    x = 1\n" * 249, False, 0),
        ("class C:\n" + "    x = 1\n" * 250, False, 1),
        ("x = 1\n" * 400, False, 0),
        ("x = 1\n" * 401, False, 1),
        ("class C:\n    def f(self, a, b, c, d, e, g, h, i): ...", False, 0),
        ("class C:\n    def f(self, a, b, c, d, e, g, h, i, *, j): ...", False, 1),
        ("async def f(a, b, c, d, e, g, h, i, j): ...", False, 1),
    ],
)
def test_the_limits_are_the_stated_ones(source: str, in_kernels: bool, count: int) -> None:
    assert len(list(violations(source, in_kernels=in_kernels))) == count
