"""Workers of huey for tests."""
