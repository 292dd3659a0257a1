"""The doctor: looks at a live set-up, and says what to change."""
