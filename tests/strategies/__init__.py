"""Random problems: seeded generators, hypothesis strategies over them, and enumeration of what they draw."""
