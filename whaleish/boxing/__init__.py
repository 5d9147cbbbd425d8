"""Boxing: changing a tensor from one layout to another."""
