"""Variance and cost of group gradients: when siblings beat whole episodes, in closed form."""
