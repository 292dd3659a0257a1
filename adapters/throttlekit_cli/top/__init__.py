"""The commands `throttlekit top` and `throttlekit explain`, which show why jobs wait, from the store alone."""
