"""`throttlekit demo`: real workers, a partner with a real limit, and an account of what happened."""
