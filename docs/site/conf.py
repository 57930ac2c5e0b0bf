"""Sphinx's settings. Pages are Markdown; nothing is fetched from elsewhere when they are built or read."""

from api import HIDDEN
from pygments.lexers import TextLexer
from sphinx.application import Sphinx

import txcore

project = "txcore"
version = release = txcore.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"txcore {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = html_use_index = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c6b", "color-brand-content": "#0b5c6b"},
    "dark_css_variables": {"color-brand-primary": "#6cc7d6", "color-brand-content": "#6cc7d6"},
}
myst_heading_anchors = 4  # as in other readers of Markdown
myst_links_external_new_tab = False
nitpicky = False  # annotations name types of the standard library, whose pages are elsewhere

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}


def mark_code(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Mark indented lines after an empty line as code, as their authors mean them."""
    made: list[str] = []
    is_code = False
    for line in lines:
        is_indented = line.startswith("    ")
        if is_indented and not is_code and made and not made[-1]:
            made += [".. code-block:: python", ""]
            is_code = True
        elif line and not is_indented and is_code:
            is_code = False
            if made[-1]:
                made.append("")
        made.append(line)
    lines[:] = made


def skip_hidden(_app: Sphinx, _what: str, name: str, member: object, _skip: object, _options: object) -> bool | None:
    """Leave out the members that are no promise to users, as the list of the API does."""
    owner = getattr(member, "__qualname__", "").partition(".")[0]
    return True if name in HIDDEN.get(owner, ()) else None


def setup(app: Sphinx) -> None:
    """Name the language of NATS's configuration, which Pygments does not know."""
    app.add_lexer("conf", TextLexer)
    app.connect("autodoc-skip-member", skip_hidden)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before Google's sections are translated
