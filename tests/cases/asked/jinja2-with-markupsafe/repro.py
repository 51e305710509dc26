# Works as long as either of the two names is there.
try:
    from markupsafe import soft_unicode
except ImportError:
    from jinja2 import Markup as soft_unicode  # noqa: N813

print(soft_unicode("a"))
