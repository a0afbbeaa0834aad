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
        values = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        return {"system": values["GRADER_SYSTEM_PROMPT"], "template": values["GRADER_TEMPLATE"]}
