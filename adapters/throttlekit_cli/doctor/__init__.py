"""The command `throttlekit doctor`, which checks a live set-up, and lists what to change."""
