"""The variables of a chat template that a request may set, such as `enable_thinking`."""

from __future__ import annotations

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

_RENDERERS_OWN = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
}
"""What Transformers itself gives to a chat template, beside special tokens such as `bos_token`."""


class _Generation(Extension):
    """Reads the block `generation`, which Transformers adds to Jinja's language, as what is in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def free_variables(template: str) -> set[str]:
    """The names that a template reads where neither it nor Transformers has set them; none if it cannot be read."""
    environment = Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
    try:
        names = meta.find_undeclared_variables(environment.parse(template))
    except TemplateError:
        return set()
    tokens = {name for name in names if name.endswith("_token")}
    return names - tokens - _RENDERERS_OWN - environment.globals.keys()
