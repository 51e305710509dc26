"""kombu lists its serializers' entry points and fails (celery/kombu#1600).

Where the standard library has no importlib.metadata, kombu asks the importlib-metadata package,
whose entry_points() once gave a dictionary and now gives something else.
"""

from kombu import serialization
from kombu.utils.compat import entrypoints


def main():
    list(entrypoints("kombu.serializers"))
    original = {"a": 1}
    content_type, content_encoding, payload = serialization.dumps(original, serializer="json")
    assert serialization.loads(payload, content_type, content_encoding) == original


if __name__ == "__main__":
    main()
