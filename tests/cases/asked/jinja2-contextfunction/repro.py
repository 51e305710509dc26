from jinja2 import contextfunction

print(contextfunction)
