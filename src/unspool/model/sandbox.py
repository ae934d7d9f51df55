"""Jinja for templates that come from strangers: no way out, no endless loop, no endless text.

Jinja's immutable sandbox keeps a template from reaching Python's insides. On top of it each rendering has a
budget: calls and turns of loops cost steps, printed characters count, and so does every value that is made,
which also may not grow beyond a limit. Jinja has hooks for calls and operators; loops, ``~``, filters,
literals and output are rewritten to calls in the parsed template. What makes long text from a number is left
out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 500_000
"""Calls and turns of loops in one rendering."""
MAX_SECONDS = 10.0
MAX_CHARACTERS = 4_000_000
"""Characters that one rendering may print, captured blocks included, and that one string may have."""
MAX_ITEMS = 250_000
"""Items that one list or mapping may have, counting those of the lists and mappings in it."""
MAX_MADE = 128_000_000
"""Characters, and eight for each item, of all values that a rendering makes."""
MAX_BITS = 4096
"""Size of a whole number."""

_GROWING_METHODS = {"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map", "translate"}
_GROWING_FILTERS = {
    "batch", "center", "filesizeformat", "format", "pprint", "random", "slice", "sum", "urlize", "wordwrap",
    "xmlattr",
}  # fmt: skip


class TemplateComplaintError(TemplateError):
    """What a template says itself, through ``raise_exception``."""


class TemplateLimitError(TemplateError):
    """A rendering went beyond its budget."""


@dataclass
class Budget:
    """What a rendering may still do."""

    steps: int = MAX_STEPS
    characters: int = MAX_CHARACTERS
    made: int = MAX_MADE
    deadline: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def step(self) -> None:
        """Pay for a call or a turn of a loop."""
        self.steps -= 1
        if self.steps < 0 or time.monotonic() > self.deadline:
            raise TemplateLimitError(f"it takes more than {MAX_STEPS} steps or {MAX_SECONDS:.0f} seconds")

    def make(self, value: Any) -> None:
        """Pay for a value."""
        self.made -= measure(value)
        if self.made < 0:
            raise TemplateLimitError(f"it makes values of more than {MAX_MADE} bytes")

    def show(self, text: str) -> None:
        """Pay for printed text."""
        self.characters -= len(text)
        if self.characters < 0:
            raise TemplateLimitError(f"it writes more than {MAX_CHARACTERS} characters")


_BUDGET: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def fresh_budget() -> Iterator[None]:
    """Give the rendering in this block a budget of its own."""
    token = _BUDGET.set(Budget())
    try:
        yield
    finally:
        _BUDGET.reset(token)


def measure(value: Any) -> int:
    """What ``value`` costs; raises ``TemplateLimitError`` beyond the limits of one value."""
    cost, items, stack = 0, 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (str, bytes)):
            cost += len(item)
            check_length(len(item))
        elif isinstance(item, int) and item.bit_length() > MAX_BITS:
            raise TemplateLimitError(f"a number grows beyond {MAX_BITS} bits")
        elif isinstance(item, (list, tuple, set, frozenset, dict)):
            items += len(item)
            if items > MAX_ITEMS:
                raise TemplateLimitError(f"a list grows beyond {MAX_ITEMS} items")
            stack.extend(item)
            if isinstance(item, dict):
                stack.extend(item.values())
        elif isinstance(item, Namespace) and item is not value:
            raise TemplateLimitError("a namespace is put into a list")
    return cost + 8 * items


def check_length(length: int) -> None:
    """Refuse a string of ``length`` characters before it is made."""
    if length > MAX_CHARACTERS:
        raise TemplateLimitError(f"a text grows to {length} characters, more than {MAX_CHARACTERS}")


class GenerationMark(Extension):
    """``{% generation %}``, by which templates mark the assistant's words for training: just its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements up to ``{% endgeneration %}``."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, as Transformers sets it up, with limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, GenerationMark]
        )
        for name in _GROWING_FILTERS:
            del self.filters[name]
        for name in ("lipsum", "cycler"):
            del self.globals[name]
        self.filters |= {"tojson": _to_json, "indent": _indent, "replace": _replace, "join": _join}
        self.globals |= {"range": _range, "raise_exception": _complain, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _rewrite_fields(tree)
        return tree.set_environment(self)  # type: ignore[return-value]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuse string methods that make text of any length from a number."""
        growing = isinstance(obj, (str, bytes)) and attr in _GROWING_METHODS
        return not growing and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """``str.format`` is not safe here, however it is wrapped."""

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``obj``, if it is safe, for one step and the size of what comes back."""
        _BUDGET.get().step()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if owner is self:
            return obj(*args)
        if isinstance(owner, str) and name == "replace":
            return self.made(_replace(owner, *args, **kwargs))
        if isinstance(owner, str) and name == "join":
            (items,) = args
            return self.made(_join(items, owner))
        return self.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right``, after a look at how large the result would be."""
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and (abs(left) > 1 << 16 or abs(right) > 64):
            raise TemplateLimitError("a power is too large")
        elif operator == "%" and isinstance(left, (str, bytes)):
            raise TemplateLimitError("text is formatted with %")
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            check_length(len(left) + len(right))
        return self.made(super().call_binop(context, operator, left, right))

    def turn(self) -> bool:
        """One turn of a loop, or one look at its condition; the call has paid for it."""
        return True

    def made(self, value: Any) -> Any:
        """A value that a filter, a call, an operator or a literal made."""
        _BUDGET.get().make(value)
        return value

    def joined(self, *values: Any) -> str:
        """``a ~ b``."""
        texts = [str(value) for value in values]
        check_length(sum(map(len, texts)))
        text: str = self.made("".join(texts))
        return text

    def shown(self, value: Any) -> Any:
        """What ``{{ value }}`` prints."""
        if isinstance(value, Undefined):
            return value
        text = str(value)
        _BUDGET.get().show(text)
        return text


def _rewrite_fields(parent: nodes.Node) -> None:
    for name, value in parent.iter_fields():
        if isinstance(value, list):
            setattr(parent, name, [_rewritten(item, parent) for item in value])
        else:
            setattr(parent, name, _rewritten(value, parent))


def _rewritten(node: Any, parent: nodes.Node) -> Any:
    """``node`` with the budget's calls in it, and around it where it makes a value."""
    if not isinstance(node, nodes.Node):
        return node
    if isinstance(node, nodes.FilterBlock) or (isinstance(node, nodes.Filter) and node.node is None):
        raise TemplateLimitError(f"line {node.lineno} applies a filter to a block, which is not supported")
    _rewrite_fields(node)
    if isinstance(node, nodes.For):
        turn = _budget_call("turn", [], node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(turn, node.test, lineno=node.lineno)
    elif isinstance(node, nodes.TemplateData):
        return _budget_call("shown", [nodes.Const(node.data, lineno=node.lineno)], node.lineno)
    elif isinstance(node, nodes.Concat):
        return _budget_call("joined", node.nodes, node.lineno)
    elif isinstance(parent, nodes.Output):
        return _budget_call("shown", [node], node.lineno)
    elif _makes_value(node):
        return _budget_call("made", [node], node.lineno)
    return node


def _makes_value(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Tuple):
        return node.ctx == "load"
    return isinstance(node, (nodes.Filter, nodes.List, nodes.Dict))


def _budget_call(name: str, args: list[Any], line: int) -> nodes.Call:
    """A call of the environment's method ``name``; templates cannot rename it."""
    return nodes.Call(nodes.EnvironmentAttribute(name), args, [], None, None, lineno=line)


def _check_product(left: Any, right: Any) -> None:
    """Refuse a sequence repeated beyond the limit, before it is made."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(count, int):
            check_length(len(sequence) * max(count, 0) * (1 if isinstance(sequence, str) else 16))


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_ITEMS:
        raise TemplateLimitError(f"a range of {len(numbers)} numbers is too long")
    return numbers


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, part = str(s), str(old)
    limit = -1 if count is None else count
    found = text.count(part) if limit < 0 else min(limit, text.count(part))
    check_length(len(text) + found * max(len(str(new)) - len(part), 0))
    return text.replace(part, str(new), limit)


def _join(value: Any, d: Any = "", attribute: str | None = None) -> str:
    separator, texts, length = str(d), [], 0
    for item in value:
        text = str(item if attribute is None else item[attribute])
        length += len(text) + len(separator)
        check_length(length)
        texts.append(text)
    return separator.join(texts)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's filter, for widths up to 64."""
    if (width if isinstance(width, int) else len(width)) > 64:
        raise TemplateLimitError("an indentation is wider than 64")
    check_length(len(s) + 64 * s.count("\n"))
    return do_indent(s, width, first, blank)


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Transformers' templates write it: without escapes for HTML."""
    if indent is not None and indent > 16:
        raise TemplateLimitError("an indentation is wider than 16")
    text: str = json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return text


def _strftime_now(form: str) -> str:
    """The time now, written as ``form`` says."""
    if len(form) > 100 or re.search(r"%[^a-zA-Z%]*\d", form):
        raise TemplateLimitError("the date's format is too long")
    return datetime.now().strftime(form)


def _complain(message: str) -> str:
    raise TemplateComplaintError(str(message))
