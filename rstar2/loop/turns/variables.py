"""Finds the variables of a chat template that a request may set, such as `enable_thinking`."""

from __future__ import annotations

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

_SET_BY_TRANSFORMERS = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
}
"""Variables that Transformers itself sets for a chat template, besides special tokens such as `bos_token`."""


class _Generation(Extension):
    """Replaces a block `generation` by its contents. Transformers adds this block to Jinja's syntax."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def free_variables(template: str) -> set[str]:
    """Returns the variables that a template reads and that neither the template nor Transformers sets.

    The result is empty if the template cannot be parsed.
    """
    environment = Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
    try:
        names = meta.find_undeclared_variables(environment.parse(template))
    except TemplateError:
        return set()
    tokens = {name for name in names if name.endswith("_token")}
    return names - tokens - _SET_BY_TRANSFORMERS - environment.globals.keys()
