"""The choice among families of classifiers by cross-validation within a budget of seconds."""
