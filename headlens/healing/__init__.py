"""A short training after surgery, in which the model that was pruned learns to say again what the original says."""

from headlens.errors import HealingError
from headlens.healing.heal import Healed, heal, heal_alike, heal_with_random
from headlens.healing.recipe import Recipe

__all__ = ["Healed", "HealingError", "Recipe", "heal", "heal_alike", "heal_with_random"]
