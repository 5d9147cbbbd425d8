"""Scopes and layouts by name, for code that is not to be edited: `wh.function(step, rules={...})`."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whaleish.graph import FORWARD, LogicalGraph, Scope, ScopePath
from whaleish.sbp import Layout, parse_layout
from whaleish.scopes import ScopeContext, check
from whaleish.scopes.half import HalfContext

Rules = Mapping[str, ScopeContext | Sequence[ScopeContext] | str]
"""Regular expression -> scopes, outer to inner, for ops of such names; or a layout, for variables."""


@dataclass(frozen=True)
class NameRule:
    """One rule: scopes, or a layout, for what a pattern is found in."""

    pattern: re.Pattern[str]
    scopes: tuple[ScopeContext, ...] = ()
    layout: Layout = ()


def parse_rules(rules: Rules) -> list[NameRule]:
    """Checks what the user gave.

    Raises:
      TypeError, ValueError: a rule is none.
    """
    found = []
    for text, given in rules.items():
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ValueError(f"rules: {text!r} is not a regular expression: {error}") from None
        if isinstance(given, str):
            found.append(NameRule(pattern, layout=parse_layout(given)))
            continue
        scopes: tuple[Any, ...] = tuple(given) if isinstance(given, Sequence) else (given,)
        if any(isinstance(scope, HalfContext) for scope in scopes):
            raise TypeError(
                f"rules: {text!r} is given wh.half, which changes what is computed and cannot be entered afterwards. "
                "Enter it in the step or in the call of a layer, or make the model with a mixed dtype policy"
            )
        if not scopes or not all(isinstance(scope, ScopeContext) for scope in scopes):
            raise TypeError(
                f"rules: {text!r} is given {given!r}; give a scope (wh.split()), several from outer to inner, or a "
                'layout ("S(0)")'
            )
        found.append(NameRule(pattern, scopes))
    return found


def apply_rules(graph: LogicalGraph, rules: Sequence[NameRule]) -> None:
    """Puts the forward ops into scopes, inside those that they were made in, and states layouts of variables.

    Raises:
      ValueError: a pattern is found in no name; with some of the names that there are.
    """
    numbers = itertools.count(1 + max((scope.number for path in graph.scopes for scope in path), default=-1))
    paths: dict[ScopePath, int] = {path: number for number, path in enumerate(graph.scopes)}
    taken: set[object] = set()
    for rule in rules:
        matched = False
        segments: dict[str, tuple[Scope, ...]] = {}
        for op in graph.ops if rule.scopes else []:
            found = rule.pattern.search(op.name) if op.phase == FORWARD and op.name not in taken else None
            if found is None:
                continue
            segment = _segment(rule, op.name, found)
            if segment not in segments:
                segments[segment] = tuple(Scope(scope.kind, next(numbers), scope.options) for scope in rule.scopes)
            inner = segments[segment]
            path = (*graph.scopes[op.scope], *inner)
            if path not in paths:
                for length in range(len(path) - len(inner) + 1, len(path) + 1):
                    check(path[:length])
                paths[path] = len(graph.scopes)
                graph.scopes.append(path)
            op.scope, matched = paths[path], True
            taken.add(op.name)
        if rule.layout:
            hit = {v for v in graph.variables if v.handle not in taken and rule.pattern.search(v.name)}
            taken.update(v.handle for v in hit)
            matched = bool(hit)
            graph.variables = tuple(replace(v, pinned=rule.layout) if v in hit else v for v in graph.variables)
        if not matched:
            _refuse(graph, rule)


def _segment(rule: NameRule, name: str, found: re.Match[str]) -> str:
    """What the ops have in common in their names that a rule puts into one entering of its scopes.

    `wh.recompute()` is entered once for each layer whose name the pattern describes: up to the next slash of the name,
    a `.*` at the pattern's end aside. Other scopes are entered once.
    """
    if not any(scope.kind == "recompute" for scope in rule.scopes):
        return ""
    named = re.compile(re.sub(r"(?:\.[*+]\??)+(\)*)\$?$", r"\1", rule.pattern.pattern), rule.pattern.flags)
    short = named.search(name) or found
    end = name.find("/", max(short.end() - 1, 0))
    return name if end < 0 else name[:end]


def _refuse(graph: LogicalGraph, rule: NameRule) -> None:
    """A rule without effect is a mistake; what earlier rules took is found here too, and says so."""
    if rule.scopes:
        kind, names = "op", [op.name for op in graph.ops if op.phase == FORWARD and op.type != "Const"]
    else:
        kind, names = "variable", [variable.name for variable in graph.variables]
    if any(rule.pattern.search(name) for name in names):
        raise ValueError(f"rules: every {kind} in whose name {rule.pattern.pattern!r} is found has an earlier rule")
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    near = _nearest(rule.pattern.pattern, names)
    hint = f"; the nearest are in {', '.join(near)}" if near else ""
    raise ValueError(f"rules: {rule.pattern.pattern!r} is found in the name of no {kind}{hint}. There are {shown}")


def _nearest(pattern: str, names: Sequence[str]) -> list[str]:
    """The parts of names, between slashes, that look most like what a pattern says."""
    words = [word for word in re.split(r"[^\w]+", pattern) if word]
    parts = dict.fromkeys(part for name in names for part in name.split("/"))
    found = (difflib.get_close_matches(word, parts, n=3) for word in words)
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))
