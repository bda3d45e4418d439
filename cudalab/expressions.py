"""Arithmetic over dimensions and tunables, as a person types it: "cdiv(N, BN), cdiv(M, BM)".

Only integers, names, + - * / // %, comparisons, a conditional, and the functions `cdiv`, `min`, `max` exist; nothing is ever executed.
"""

import ast
import functools
import operator
from collections.abc import Mapping

from cudalab.errors import LabError

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
           ast.Mod: operator.mod}
_COMPARE = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
            ast.NotEq: operator.ne}


def cdiv(a: int, b: int) -> int:
    """The quotient rounded up: how many tiles of `b` cover `a`."""
    return -(-a // b)


_FUNCTIONS = {"cdiv": cdiv, "min": min, "max": max}


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def evaluate(text: str, names: Mapping[str, int]) -> tuple[int, ...]:
    """The integers that a comma-separated expression gives, with `names` bound to their values.

    Raises LabError for anything that is not integer arithmetic over known names; the message quotes the expression.
    """

    def value(node):
        match node:
            case ast.Constant(value=int() as v) if not isinstance(v, bool):
                return v
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name):
                raise LabError(f"'{text}': unknown name '{name}'; known: {' '.join(sorted(names))}, {' '.join(_FUNCTIONS)}")
            case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
                return _BINARY[type(op)](value(a), value(b))
            case ast.BinOp(left=a, op=ast.Div(), right=b):
                quotient, rest = divmod(value(a), value(b))
                if rest:
                    raise LabError(f"'{text}': a division that leaves a remainder; write // or cdiv(a, b)")
                return quotient
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return -value(a)
            case ast.IfExp(test=test, body=a, orelse=b):
                return value(a) if value(test) else value(b)
            case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](value(a), value(b))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
                return _FUNCTIONS[name](*map(value, args))
        raise LabError(f"'{text}': only integers, names, + - * / // %, comparisons, 'a if c else b', cdiv, min and max are allowed")

    try:
        body = _parsed(text.strip())
        return tuple(int(value(node)) for node in (body.elts if isinstance(body, ast.Tuple) else [body]))
    except (SyntaxError, ValueError, TypeError, RecursionError) as error:
        raise LabError(f"'{text}' is not an expression: {getattr(error, 'msg', error)}") from None
    except ZeroDivisionError:
        raise LabError(f"'{text}' divides by zero") from None
