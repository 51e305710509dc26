from packaging.version import LegacyVersion

print(LegacyVersion("2004d"))
