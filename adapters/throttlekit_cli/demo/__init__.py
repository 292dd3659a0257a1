"""`throttlekit demo`: real workers, a partner API with a real limit, and a report of what happened."""
