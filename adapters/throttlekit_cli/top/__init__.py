"""Why jobs wait, from the store alone: `throttlekit top` and `throttlekit explain`."""
