"""Helpers that the tests share, such as servers and waits for conditions."""
