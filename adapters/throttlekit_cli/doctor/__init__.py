"""The doctor: checks a live set-up, and lists what to change."""
