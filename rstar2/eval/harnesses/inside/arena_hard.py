"""Reads Arena-Hard's prompts for its judge model from the package evalscope."""

import ast
import importlib.util
from pathlib import Path


class Worker:
    """Reads the package's source, so that the package's dependencies need not be installed."""

    def words(self) -> dict[str, str]:
        """Returns the two prompts: `system`, and `template`, which has the fields question, answer_1 and answer_2."""
        spec = importlib.util.find_spec("evalscope")
        assert spec is not None
        assert spec.submodule_search_locations
        folder = Path(next(iter(spec.submodule_search_locations)))
        source = (folder / "benchmarks" / "arena_hard" / "arena_hard_adapter.py").read_text(encoding="utf-8")
        # `eval` is needed because one prompt is a literal and the other a call of `strip` on a literal.
        values = {
            node.targets[0].id: eval(compile(ast.Expression(node.value), "evalscope", "eval"), {})
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id.startswith("GRADER_")
        }
        return {"system": values["GRADER_SYSTEM_PROMPT"], "template": values["GRADER_TEMPLATE"]}
