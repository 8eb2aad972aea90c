"""Decoding, calibration and completion of classifiers of label vectors."""
