"""Gives Arena-Hard's words for its judge model, as the package evalscope carries them."""

import ast
import importlib.util
from pathlib import Path


class Worker:
    """Reads the package's source, which needs nothing else installed."""

    def words(self) -> dict[str, str]:
        """`system` and `template`, which has the fields question, answer_1 and answer_2."""
        found = importlib.util.find_spec("evalscope")
        assert found is not None
        assert found.submodule_search_locations
        folder = Path(next(iter(found.submodule_search_locations)))
        source = (folder / "benchmarks" / "arena_hard" / "arena_hard_adapter.py").read_text(encoding="utf-8")
        # Evaluated, since one is a text and the other a call of its `strip`.
        values = {
            node.targets[0].id: eval(compile(ast.Expression(node.value), "evalscope", "eval"), {})
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id.startswith("GRADER_")
        }
        return {"system": values["GRADER_SYSTEM_PROMPT"], "template": values["GRADER_TEMPLATE"]}
