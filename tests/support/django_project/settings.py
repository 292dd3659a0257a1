"""
The settings of the project. TK_DJANGO is the setting THROTTLEKIT as JSON, TK_DATABASE the database's file, and TK_URLS
the module of other URLs.
"""

import json
import os

SECRET_KEY = "not secret"
DEBUG = os.environ.get("TK_DEBUG") == "1"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = os.environ.get("TK_URLS", "support.django_project.urls")
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "throttlekit_django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("TK_DATABASE", ":memory:")}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
USE_TZ = True
THROTTLEKIT = json.loads(os.environ["TK_DJANGO"])
