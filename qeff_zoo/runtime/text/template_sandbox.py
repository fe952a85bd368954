# SPDX-License-Identifier: Apache-2.0
"""Sandbox for untrusted Jinja templates, without side effects, and within a budget of time and memory.

Calls, loop iterations, and created text and lists are charged to the budget of a rendering, before they are created
if their size is known. One long call of a built-in function cannot be interrupted.
"""

import functools
import math
import re
import threading
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Characters that one rendering may create. The longest contexts have some millions of characters.
_BUDGET = 1 << 28
_STEP = 500  # cost of a call or a loop iteration, in characters
_LOOK = 50  # cost of a nested value
_REFERENCE = 8  # cost of a list entry
_SOURCE = 1 << 20  # maximum characters of a template
_LARGEST = 1 << 20  # maximum of numbers that set the length of a text or a list
_BITS = 4096  # maximum bits of a number
_WIDE = re.compile(r"%[^a-zA-Z%]*(\*|\d{7})|\{[^{}]*\d{7}")  # widths in format strings
#: Functions whose result may be as large as the product of their arguments.
_GROWING = {
    *("center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "tojson", "translate"),
    *("wordwrap", "zfill"),
}
#: Filters that convert any argument to text. Others only read its entries.
_WRITING = _GROWING | {
    *("capitalize", "e", "escape", "forceescape", "format", "lower", "pprint", "safe", "string"),
    *("striptags", "title", "trim", "truncate", "upper", "urlencode", "urlize", "wordcount"),
    "xmlattr",
}


class OverBudgetError(jinja2.TemplateError):
    """A template exceeds the budget of a rendering, or its cost cannot be bounded in advance."""


class _Priced(NodeTransformer):
    """AST transformer that adds charges for loops, slices and concatenated texts to a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 -- as Jinja looks for it
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        pay = _call("step", nodes.Const(text), node.lineno)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(pay, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(pay, node.test, lineno=node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("taken", node, node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_call("written", one, one.lineno) for one in node.nodes]
        return node


def _call(name: str, argument: nodes.Expr, lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(function, [argument], [], None, None, lineno=lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment for templates of a package. Thread-safe.

    Args:
        extensions: Extensions of Jinja.
        filters: Filters besides Jinja's.
        functions: Global functions.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(
        self,
        extensions: list[type[Extension]],
        filters: Mapping[str, Callable[..., Any]],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._account = threading.local()
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self.written
        )
        known = {**self.filters, **filters}
        self.filters = {name: self._priced(name, value) for name, value in known.items()}
        self.globals.update(functions)
        del self.globals["lipsum"]  # of unlimited length

    def parsed(self, source: str) -> jinja2.Template:
        """Compile a template.

        Raises:
            OverBudgetError: If the template is too long.
            jinja2.TemplateError: If the template is not valid Jinja.
        """
        self._account.left = _BUDGET  # constants are computed now
        if len(source) > _SOURCE:
            raise OverBudgetError(f"it has {len(source):,} characters, more than {_SOURCE:,}")
        return self.from_string(source)

    def rendered(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        """Render a template of this environment.

        Args:
            template: The template.
            values: Variables.

        Raises:
            OverBudgetError: If rendering exceeds the budget.
        """
        self._account.left = _BUDGET
        return template.render(values)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Priced().visit(Parser(self, source, name, filename).parse())
        return tree

    def step(self, cost: int) -> bool:
        """Charge a cost to the budget."""
        self._account.left -= cost
        if self._account.left < 0:
            raise OverBudgetError("it runs for too long, or makes too much text")
        return True

    def taken(self, value: Any) -> Any:
        """Charge a created value to the budget."""
        if isinstance(value, GeneratorType):
            value = [item for item in value if self.step(1)]
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise OverBudgetError(f"it computes a number of more than {_BITS:,} bits")
        self.step(_size(value))
        return value

    def written(self, value: Any) -> Any:
        """Charge all contents of a value that becomes text."""
        self._measured(value)
        return value

    def _measured(self, value: Any) -> int:
        inner, size = [value], 0
        while inner:
            one = inner.pop()
            self.step(_LOOK + _size(one))
            size += _size(one)
            if isinstance(one, Mapping):
                inner += [*one, *one.values()]
            elif isinstance(one, list | tuple):
                inner += one
        return size

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, or a method of a text, within the budget."""
        __self.step(_STEP)
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            __self._allow(method.__name__, (owner, *args, *kwargs.values()), writes=True)
        return __self.taken(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation whose result may be large."""
        sizes = [_size(one) or _number(one) for one in (left, right)]
        if operator == "*" and (_size(left) or _size(right)):
            self.step(math.prod(sizes))
        elif operator == "**" and isinstance(left, int):
            self.step(left.bit_length() * sizes[1])
        elif operator == "%" and isinstance(left, str):
            self._allow("format", (left, right), writes=True)
        return self.taken(super().call_binop(context, operator, left, right))

    def _priced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter with charges; Jinja's implicit first argument is not charged."""
        skipped = 1 if getattr(function, "jinja_pass_arg", None) else 0

        @functools.wraps(function)
        def priced(*args: Any, **kwargs: Any) -> Any:
            self._allow(name, (*args[skipped:], *kwargs.values()), writes=name in _WRITING)
            return self.taken(function(*args, **kwargs))

        return priced

    def _allow(self, name: str, values: tuple[Any, ...], *, writes: bool) -> None:
        """Reject a call that would create too much, or take too long."""
        sizes = [self._measured(value) if writes else _size(value) for value in values]
        self.step(sum(sizes))
        if name in _GROWING:
            first = 2 if name == "replace" else 1  # the replaced text does not lengthen the result
            self.step(sizes[0] * max([1, *sizes[first:], *map(_number, values[1:])]))
        if any(_number(value) > _LARGEST for value in values[1:]) and name not in ("default", "d"):
            raise OverBudgetError(f"{name!r} is given a number above {_LARGEST:,}")
        if name == "sum" and any(isinstance(value, list | tuple) for value in values[1:]):
            raise OverBudgetError("it adds lists up")  # each addition copies the sum
        if name.startswith("format") and _WIDE.search(str(values[0])):
            raise OverBudgetError("it formats a text by a number above 999,999")


def _size(value: Any) -> int:
    """Return the cost of a value, in characters."""
    if isinstance(value, list | tuple | Mapping):
        return _REFERENCE * len(value)
    return len(value) if isinstance(value, str | bytes | range) else 0


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0
