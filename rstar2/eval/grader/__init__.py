"""Does the model's answer equal the gold answer?

`extract_answer` finds the answer in the model's final turn, `grade` compares it with the gold answer in this
process, and `GraderPool` does the same in killable processes with a deadline; evaluation and training use the
pool. Nothing here evaluates text as code.
"""

from rstar2.eval.grader.extract import extract_answer
from rstar2.eval.grader.grading import Verdict, grade
from rstar2.eval.grader.pool import GraderPool

__all__ = ["GraderPool", "Verdict", "extract_answer", "grade"]
