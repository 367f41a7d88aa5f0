"""Softmax coefficients of bounded rows as n grows: the theorem illustrated."""
