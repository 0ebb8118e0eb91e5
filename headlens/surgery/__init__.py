"""Take heads out of models for good: the plan applied, what removed heads go on giving, and repair of what is left."""

from headlens.surgery.apply import apply_plan
from headlens.surgery.expand import expand_to_multi_head
from headlens.surgery.fills import Means, mean_contexts
from headlens.surgery.masked import MASKED_ENTRY, masked_twin
from headlens.surgery.present import full_plan, present_plan
from headlens.surgery.repair import refit
from headlens.surgery.shapes import resize

__all__ = [
    "MASKED_ENTRY",
    "Means",
    "apply_plan",
    "expand_to_multi_head",
    "full_plan",
    "masked_twin",
    "mean_contexts",
    "present_plan",
    "refit",
    "resize",
]
