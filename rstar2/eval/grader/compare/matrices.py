"""Computes matrices, vectors, and their products, sums and multiples as tables of expressions."""

from __future__ import annotations

from functools import reduce

from rstar2.eval.grader.parse.nodes import Brackets, Matrix, Node, Number, Power, Product, Quotient, Sum, walk
from rstar2.eval.grader.values.guarded_numbers import NoValue

MAX_TERMS = 2000
"""Maximum number of terms in one cell of a product of matrices."""
Table = tuple[tuple[Node, ...], ...]
"""The rows of a matrix."""


def has_matrix(node: Node) -> bool:
    """Whether a matrix is part of the expression."""
    return isinstance(node, Matrix) or (
        isinstance(node, Sum | Product | Quotient | Power)
        and any(isinstance(part, Matrix) for part in walk(node))
    )


def table_of(node: Node) -> Table | None:
    """Returns the table of an expression, or None for a scalar.

    Raises NoValue if the sizes of matrices do not fit together, or if cells would be too large.
    """
    sizes = [max(len(part.rows), len(part.rows[0])) for part in walk(node) if isinstance(part, Matrix)]
    if not sizes:
        return None
    factors = len(sizes) + sum(_exponent(part) for part in walk(node))
    if factors > 1 and max(sizes) ** factors > MAX_TERMS:
        raise NoValue("too many matrices")
    return _table(node)


def _exponent(node: Node) -> int:
    """Returns the exponent if the node is a power of a matrix, and 0 for any other node."""
    match node:
        case Power(base=base, exponent=Number(value=value)) if 1 <= value <= 5 and has_matrix(base):
            return int(value)
    return 0


def _table(node: Node) -> Table | None:
    match node:
        case Matrix(rows=rows):
            return rows
        case Product(factors=factors):
            return _product([(factor, _table(factor)) for factor in factors])
        case Sum(terms=terms):
            return _sum([_table(term) for term in terms])
        case Quotient(over=over, under=under):
            table = _table(over)
            return table and tuple(tuple(Quotient(cell, under) for cell in row) for row in table)
        case Power(base=base, exponent=Number(value=value)):
            table = _table(base)
            if table is not None:
                if value.denominator != 1 or not 1 <= value <= 5 or not isinstance(base, Matrix):
                    raise NoValue("a matrix to a power that is not supported")
                return _product([(base, table)] * int(value))
    return None


def table_in_brackets(node: Node) -> Table | None:
    """Returns the table in nested brackets such as [[1,0],[0,1]], or None if the node is not such a table."""
    if not isinstance(node, Brackets) or not node.items:
        return None
    rows = [item.items if isinstance(item, Brackets) else None for item in node.items]
    if any(row is None for row in rows) or len({len(row) for row in rows if row is not None}) != 1:
        return None
    return tuple(row for row in rows if row is not None)


def vector(table: Table) -> tuple[Node, ...] | None:
    """Returns the entries of a table with one column or one row, or None for any other table."""
    if len(table[0]) == 1:
        return tuple(row[0] for row in table)
    return table[0] if len(table) == 1 else None


def _product(factors: list[tuple[Node, Table | None]]) -> Table | None:
    tables = [table for _, table in factors if table is not None]
    if not tables:
        return None
    total = reduce(_times, tables)
    scalars = [node for node, table in factors if table is None]
    if not scalars:
        return total
    return tuple(tuple(Product((*scalars, cell)) for cell in row) for row in total)


def _times(a: Table, b: Table) -> Table:
    if len(a[0]) != len(b):
        raise NoValue("matrices whose sizes do not fit")
    columns = tuple(zip(*b, strict=True))
    return tuple(
        tuple(Sum(tuple(Product(pair) for pair in zip(row, column, strict=True))) for column in columns)
        for row in a
    )


def _sum(tables: list[Table | None]) -> Table | None:
    if all(table is None for table in tables):
        return None
    matrices = [table for table in tables if table is not None]
    if len(matrices) != len(tables) or len({(len(table), len(table[0])) for table in matrices}) != 1:
        raise NoValue("matrices whose sizes do not fit")
    return tuple(
        tuple(Sum(cells) for cells in zip(*rows, strict=True)) for rows in zip(*matrices, strict=True)
    )
