"""The HTTP endpoint of a checker process: health, metrics and a JSON API that changes nothing.

`app` puts it together from lists of routes, so that others may be added beside them; `guard` keeps the door.
"""
