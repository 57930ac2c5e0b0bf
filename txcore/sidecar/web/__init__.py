"""The HTTP endpoint of a checker process: health, metrics and a JSON API that changes nothing.

`app` builds it from lists of routes, so that more routes may be added; `guard` refuses requests.
"""
