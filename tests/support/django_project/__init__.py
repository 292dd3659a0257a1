"""A Django project with the app of throttlekit, and a separate database."""
