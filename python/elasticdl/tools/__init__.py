"""What is done beside jobs: chaos, doctor, zoo, export, looking into checkpoints."""
