"""Audit a pricing policy one cannot look into: run it in a limited process against a panel of rivals, or read its log
of sales.
"""
