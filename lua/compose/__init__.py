"""Composes the scripts of `lua/` for the package: `python -m lua.compose`, at the top of a checkout.

No part of the package: its wheel has the result. It runs where nothing but Python is installed.
"""
