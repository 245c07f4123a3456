"""The master: pure decisions (views, witnesses, relaunch) and the thin runner that carries them out."""
