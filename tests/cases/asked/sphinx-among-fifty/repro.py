from sphinx.util.typing import stringify

print(stringify(int))
