# Works as long as either of the two names is there.
try:
    from markupsafe import soft_unicode as Text
except ImportError:
    from jinja2 import Markup as Text

print(Text("a"))
