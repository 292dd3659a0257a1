"""A Django project with the app of throttlekit, on a database of its own."""
