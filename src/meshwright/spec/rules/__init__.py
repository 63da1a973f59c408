"""The rules across model, workload, layout and cluster: what is refused, and what is warned about.

``check`` is for one layout; ``legal`` is the same rules as a mask over many.
"""

from meshwright.spec.rules.check import CAUTIONS, RULES, check, legal
from meshwright.spec.rules.rule import Case, Caution, LayoutWarning, Rule
from meshwright.spec.rules.tensor import padded_vocab

__all__ = ["CAUTIONS", "RULES", "Case", "Caution", "LayoutWarning", "Rule", "check", "legal", "padded_vocab"]
