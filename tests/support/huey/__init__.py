"""Huey's workers under test."""
