"""Steps of a training: the trainer, its optimizers, its pipeline, and the ranks that it runs on."""
