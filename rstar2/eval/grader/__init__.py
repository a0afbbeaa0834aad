"""Grades whether a model's answer equals the gold answer.

`extract_answer` extracts the answer from the model's final turn. `grade` extracts the answer and compares it with the
gold answer, in this process. `GraderPool` extracts and compares answers in processes that are killed at a deadline.
Evaluation and training use `GraderPool`. No text is ever evaluated as code.
"""

from rstar2.eval.grader.extract import extract_answer
from rstar2.eval.grader.grading import Verdict, grade
from rstar2.eval.grader.pool import GraderPool

__all__ = ["GraderPool", "Verdict", "extract_answer", "grade"]
