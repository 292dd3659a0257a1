"""A Django project with django-rq."""
