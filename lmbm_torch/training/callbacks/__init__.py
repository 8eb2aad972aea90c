"""Lightning callbacks that show and control a training."""
