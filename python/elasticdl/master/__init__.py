"""The master: pure decisions (views, witnesses, relaunch) and the thin shell that carries them out."""
