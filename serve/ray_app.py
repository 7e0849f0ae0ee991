"""Import path of the Ray Serve application, ``serve run serve.ray_app:app``: see ``serve.ray.app``."""

from serve.ray.app import ADD_SERVICES, Message, Replica, Serving, add_services, app

__all__ = ["ADD_SERVICES", "Message", "Replica", "Serving", "add_services", "app"]
