"""The planner: a logical graph and a cluster in, a plan out. Pure: no TensorFlow, no devices."""

from whaleish.planner.making import make_plan
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.roles import PlanError

__all__ = ["Choice", "Plan", "PlanError", "make_plan"]
