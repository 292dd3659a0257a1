"""A web page that shows the fleet's limits from the store alone, with its own server, or mounted in an app."""

from throttlekit_web._asgi import asgi_app
from throttlekit_web._http import Request, Response
from throttlekit_web._site import Site
from throttlekit_web._wsgi import wsgi_app

__all__ = ["Request", "Response", "Site", "asgi_app", "wsgi_app"]
