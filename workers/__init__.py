"""Workers: consume, batch, load, run, answer, acknowledge. Offline scoring uses the same engine."""
